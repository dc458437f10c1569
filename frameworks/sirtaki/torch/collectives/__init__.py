"""The collectives, one file for each verb; their public names are in sirtaki.torch.

Rules for all of them. Tensors are dense, contiguous, on the CPU or a CUDA GPU. Dtypes: bool, (u)int8 to 64, float16,
bfloat16, float32, float64; complex and float8 where the operation allows it. Every rank of the process set makes the
same call with the same name; calls with different names may come in any order. A wrong argument raises ValueError at
the call. If the calls of the ranks differ, each rank raises SirtakiInternalError with a table of all ranks' requests.
`name=None` numbers the calls, so all ranks must then make them in the same order. `*_async` returns a handle for
`poll` and `synchronize`. Do not change the tensor before synchronize() has returned.
"""
