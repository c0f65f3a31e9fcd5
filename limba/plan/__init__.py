"""`limba plan`: whether a training fits hardware that is not here, its speed and cost. `limba lint` may import it."""
