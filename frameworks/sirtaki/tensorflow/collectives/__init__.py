"""The collectives, one file for each verb; sirtaki.tensorflow exports their public names.

Rules for all of them. Arguments: tensors, variables, and any value that tf.convert_to_tensor takes. Dtypes: bool,
(u)int8..64, float16, bfloat16, float32, float64, as far as the operation supports them. Every member of the process set
makes the same call with the same name; in a graph, calls may run in any order. A wrong argument is a ValueError while
the op is made (TypeError if it cannot become such a tensor), or an InvalidArgumentError when it runs. If the calls of
the ranks do not match, every rank raises FailedPreconditionError with a table of the calls. If the job has failed,
UnknownError gives the cause. `name=None`: in eager mode calls are numbered, so all ranks must make them in the same
order; in a graph see sirtaki.tensorflow.ops.labels. `ignore_name_scope`: uses the name without the name scope around
the call. `device_*`: where the arithmetic around the collective runs; the collective itself runs on the CPU.
"""
