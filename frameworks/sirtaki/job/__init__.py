"""The life of a job: its ranks, their supervisors, and the launcher that starts and ends them."""
