"""What is different on CUDA from the CPU, as data, each entry with its source in PyTorch 2.13.

Read from PyTorch's source and the headers that it installs; nothing here has been measured on a GPU.
"""

NOT_MEASURED = "forecast, not measured on CUDA"

# The GPU that a forecast is for where there is none to ask: an A100 (compute capability 8.0).
ASSUMED_CAPABILITY = (8, 0)

# ---------------------------------------------------------------------------------------------------------------------
# Autocast: what is cast before an operator runs. ATen/autocast_mode.h, AT_FORALL_*, which ATen/autocast_mode.cpp
# registers for CUDA: `TORCH_LIBRARY_IMPL(aten, Autocast, m)`. Names with their overloads.

# Inputs in the dtype of autocast; the copy of a parameter is kept until autocast ends (`cached_cast`).
# AT_FORALL_LOWER_PRECISION_FP, and cuDNN's convolutions from autocast_mode.cpp.
LOWER_PRECISION = (
    *("_convolution.deprecated", "_convolution", "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d"),
    *("conv_transpose2d.input", "conv_transpose3d.input", "convolution", "prelu", "addmm", "addmv", "addr", "matmul"),
    *("einsum", "mm", "mv", "linalg_vecdot", "linear", "addbmm", "baddbmm", "bmm", "chain_matmul", "linalg_multi_dot"),
    *("_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"),
    *("_scaled_dot_product_flash_attention", "scaled_dot_product_attention"),
    *("cudnn_convolution", "cudnn_convolution_transpose"),
)
# Inputs in fp32. AT_FORALL_FP32.
FLOAT32 = (
    *("acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt"),
    *("sinh", "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm"),
    *("native_layer_norm", "rms_norm", "group_norm", "frobenius_norm.dim", "nuclear_norm", "nuclear_norm.dim"),
    *("cosine_similarity", "poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "nll_loss2d"),
    *("hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss", "margin_ranking_loss"),
    *("multilabel_margin_loss", "soft_margin_loss", "triplet_margin_loss", "multi_margin_loss"),
    *("binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm", "logsumexp"),
    *("upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_nearest2d", "_upsample_nearest_exact2d"),
    *("upsample_nearest3d", "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d"),
    *("_upsample_bilinear2d_aa", "upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bicubic2d_aa"),
)
# Told to give fp32 if not told otherwise; their input is read as it is. AT_FORALL_FP32_SET_OPT_DTYPE.
FLOAT32_RESULT = (
    *("prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "linalg_vector_norm"),
    *("linalg_matrix_norm", "linalg_matrix_norm.str_ord", "sum", "sum.dim_IntList"),
)
# As those, by another overload that takes a dtype. AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE.
FLOAT32_OVERLOAD = {
    "norm.Scalar": "norm.ScalarOpt_dtype",
    "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype",
}
# Inputs in the widest dtype among them. AT_FORALL_PROMOTE.
WIDEST = (
    *("addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put", "tensordot"),
    "scatter_add",
)

# ---------------------------------------------------------------------------------------------------------------------
# The caching allocator. c10/core/AllocatorConfig.h, and CUDACachingAllocator.cpp: `round_size`, `get_allocation_size`,
# `should_split`. `max_memory_allocated` counts the sizes of blocks.

# Any size is a multiple of this: kMinBlockSize.
BLOCK = 512
# From here on a request that finds no free block has a segment of its own, kMinLargeAlloc, a multiple of kRoundLarge.
OWN_SEGMENT, SEGMENT = 10 * 2**20, 2 * 2**20
# What is left of a large block is split off only if it is more than kSmallSize; otherwise it belongs to the request.
LEAST_REST = 2**20

# ---------------------------------------------------------------------------------------------------------------------
# Workspaces of cuBLAS, which the same allocator gives and which stay. aten/src/ATen/cuda/CublasHandlePool.cpp.

# `parseChosenWorkspaceSize`: bytes by the major compute capability (Hopper and Blackwell), and elsewhere :4096:2:16:8.
# cuBLASLt uses the same one (`unified_cublas_and_lt_workspaces`).
WORKSPACES = dict.fromkeys((9, 10, 12), 32 * 2**20)
WORKSPACE = 2 * 4096 * 2**10 + 8 * 16 * 2**10
# Sizes in KiB and how many of each, as NVIDIA's documentation of cuBLAS has it.
WORKSPACE_VARIABLE, WORKSPACE_PATTERN = "CUBLAS_WORKSPACE_CONFIG", r":([0-9]+):([0-9]+)"
# One for each thread that multiplies, as handles are (`getCurrentCUDABlasHandle`, thread_local): Python's, and the one
# in which autograd runs a device's backward pass (torch/csrc/autograd/engine.cpp, `Engine::thread_init`).
MULTIPLYING_THREADS = 2

# ---------------------------------------------------------------------------------------------------------------------
# Attention: which kernel `scaled_dot_product_attention` takes. aten/src/ATen/native/transformers/cuda/sdp_utils.cpp,
# `select_sdp_backend`; the first that can, in this order.

# `check_prefer_cudnn_attention`: cuDNN's before all others by the major compute capability.
CUDNN_FIRST = (9, 10)
# `check_cudnn_tensor_shapes`: its widest head, and what the width has to be a multiple of; `check_cudnn_dropout`.
CUDNN_WIDTH, CUDNN_MULTIPLE, CUDNN_DROPOUTS = 128, 8, 16
# `check_flash_attention_hardware_support`, `check_head_dim_size_flash`: half precision, no mask.
FLASH_CAPABILITY, FLASH_WIDTH = (8, 0), 256
# `check_requires_grad_and_head_dim_gt192_constraints_on_sm86_89_or_120`: wider heads, by capability.
FLASH_NARROW, FLASH_NARROW_WIDTH, FLASH_WIDE = (((8, 6), (8, 9)), ((12, 0), (12, 1))), 192, 224
# `scaled_dot_product_attention` in transformers/attention.cpp pads heads for flash to a multiple of this, and a mask
# for the memory-efficient kernel (`preprocess_mask`).
PADDED = 8
# `minimum_gemm_alignment`: bytes that a head's width has to be a multiple of for the memory-efficient kernel where
# there are tensor cores for the dtype, by the major compute capability; from 8.0 on at least 4 numbers.
TENSOR_CORE_BYTES, LEAST_NUMBERS = 16, 4
HALF_TENSOR_CORES, ALL_TENSOR_CORES = 7, 8
# Fewer heads of keys than of queries: flash and the kernel that is made of operators alone (documentation of
# `torch.nn.functional.scaled_dot_product_attention`, enable_gqa), and cuDNN's.

# ---------------------------------------------------------------------------------------------------------------------
# What kernels take while they run, beside their results.

# Embedding.cu, `embedding_dense_backward_cuda`: up to so many indices it takes nothing; with more it sorts them, and
# EmbeddingBackwardKernel.cu adds up the rows of each by this many at a time (NROWS_PER_THREAD).
UNSORTED_INDICES, EMBEDDING_ROWS = 3072, 10
# ForeachReduceOp.cu, `foreach_tensor_norm_cuda`: a number for each chunk of the largest tensor, for each tensor
# (MultiTensorApply.cuh, kChunkSize).
FOREACH_CHUNK = 65536
# flash_attn/flash_api.cpp, `mha_bwd`: it adds up in fp32, rows and widths of heads rounded up to these multiples.
FLASH_ROWS, FLASH_NARROW_MULTIPLE, FLASH_WIDE_MULTIPLE, FLASH_NARROW_HEAD = 128, 32, 64, 128
# mem_eff_attention/kernel_backward.h, `workspace_elements_gq`: rows and columns of a tile of the query's gradient, and
# the bytes of its lock (other tiles differ in locks alone); attention_backward.cu, `_efficient_attention_backward`: in
# fp32 the product of output and gradient.
EFFICIENT_TILE, EFFICIENT_LOCK = 64, 16
