"""How this process takes part in a job: start-up, the link to its supervisor, its children, and its end."""
