"""From a torch tensor to a submission: one function for each verb, handles, streams, and autograd."""
