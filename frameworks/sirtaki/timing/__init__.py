"""Where the time of a job goes: the timeline and the tuner."""
