"""The collectives, one file for each verb; their public names are in sirtaki.torch.

Rules for all of them. Tensors are dense, contiguous, on cpu (cuda once a GPU plane exists); dtypes bool, (u)int8..64,
float16, bfloat16, float32, float64 as far as the operation makes sense. Every member of the process set makes the same
call with the same name; calls with different names may come in any order. A wrong argument is a ValueError at the call.
If the ranks' calls do not fit together, each of them raises SirtakiInternalError with a table of what they asked for.
`name=None` numbers the calls, so that all ranks must then make them in the same order. `*_async` returns a handle for
`poll` and `synchronize`; until then the tensor must not be changed.
"""
