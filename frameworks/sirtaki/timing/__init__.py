"""Where the time of this rank goes: the records of the core's flight recorder, and what they add up to."""
