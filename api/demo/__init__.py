"""The main job, end to end: the recruiting screen on embedded stores, told so that a non-engineer can follow it."""
