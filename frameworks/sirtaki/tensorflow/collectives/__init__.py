"""The collectives, one file for each verb; their public names are in sirtaki.tensorflow.

Rules for all of them. Tensors, variables, and whatever tf.convert_to_tensor takes; dtypes bool, (u)int8..64, float16,
bfloat16, float32, float64 as far as the operation makes sense. Every member of the process set makes the same call
with the same name; in a graph, calls come in any order. A wrong argument is a ValueError while the op is made (a
TypeError if it cannot be such a tensor), or an InvalidArgumentError when it runs. If the ranks' calls do not fit
together, each of them raises FailedPreconditionError with a table of what they asked for; if the job has failed,
UnknownError with the cause. `name=None`: in eager mode the calls are numbered, so that all ranks must make them in the
same order; in a graph see sirtaki.tensorflow.labels. `ignore_name_scope`: the name is used without the name scope
around the call. `device_*`: where the surrounding arithmetic runs; the collective itself runs on the CPU.
"""
