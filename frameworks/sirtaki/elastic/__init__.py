"""Jobs whose ranks come and go: states, and the loop that restores and synchronizes them (docs/elastic.md)."""

progress = 0  # the number of commits that this process holds; init() reads it when the process joins a job
