"""What a run leaves for people: metrics, TensorBoard, W&B, tables. Checkpoints, commands, `convert` may import it."""
