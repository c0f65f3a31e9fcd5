"""Before and around a training: whether it fits hardware that is not here, its speed and cost; its mistakes (`lint/`);
where the time of a step goes (`profile/`). Nothing but the command line imports it.
"""
