"""A simulated GPU: a device of torch, ``sim``, in host memory, on which code for CUDA is tested without a GPU.

It is torch's extension device (PrivateUse1). The CPU's kernels compute on the same memory, so values equal the CPU's to
the bit; what CUDA refuses is refused:

- Tensors with dimensions must all be on one device; scalars of the CPU may take part, and indices of the CPU in
  advanced indexing. A tensor that is written must be on the device. Generators of the CPU are refused.
- New memory is filled with NaN and -1.
- ``torch.sim.CUDAGraph`` records operations with their addresses and replays them. During a recording values mean
  nothing, and reading a value, a mask, a shape that depends on values, or a copy to or from the host raise. A memory
  pool ends with the last graph that was recorded into it. A recording that fails leaves its stream the current one, and
  its pool in use; one that torch stops before CUDA hears of it, at a copy, ends without an error, and torch warns if it
  is empty.
- With deterministic algorithms, ``scatter_add`` of several dimensions copies from the host, and float ``cumsum`` warns.
- Autocast has CUDA's lists of operations. Random operations draw from the device's own generator.
- ``torch.sim.set_sync_debug_mode("error")`` raises where the host waits for the device; ``waits.counted`` counts. The
  first time in a process it warns that it is a prototype.

It cannot show: races between streams (everything is synchronous), speed, the order of CUDA's sums, sparse tensors,
complex views, pinned memory, other generators than the default one, and forked processes. There are one or two devices,
as FLNL_SIMULATED_GPU says, or as many as CUDA_VISIBLE_DEVICES lists; both have one memory and one generator.

``device.cpp`` is compiled once with g++ (``library``), into a cache outside the checkout; ``device`` registers it with
torch. Processes that a test starts get the device by ``site/sitecustomize.py``.
"""
