"""Common GPUs by name: the memory that PyTorch reports of them, which is less than they are sold by.

A GPU sold as 16 GB has 16 x 2**30 bytes, of which the driver keeps some; `torch.cuda.get_device_properties(0)
.total_memory` is what is left, and its out-of-memory messages name it ("GPU 0 has a total capacity of 14.56 GiB"). It
differs by some hundred MiB between drivers and hosts. Each figure is the smallest that was found, with its source.
"""

from dataclasses import dataclass

from ..errors import closest

BF16_SINCE = (8, 0)


@dataclass(frozen=True)
class Gpu:
    """A GPU as PyTorch sees it.

    Attributes:
        gib: its memory, in 2**30 bytes.
        capability: NVIDIA's compute capability; of AMD's, None.
        source: where the figure stands: an issue or pull request on GitHub.
    """

    gib: float
    capability: tuple[int, int] | None
    source: str

    @property
    def precision(self) -> str:
        """What autocast is to compute in: bf16 where the GPU multiplies it in hardware, else fp16.

        NVIDIA's do from compute capability 8.0 on (PyTorch's `torch.cuda.is_bf16_supported`), AMD's from the MI100 on.
        """
        return "fp16" if self.capability and self.capability < BF16_SINCE else "bf16"


GPUS = {
    "T4": Gpu(14.56, (7, 5), "Zheng-Chong/CatVTON#133"),
    # 16,130 MB in `total_memory`, as printed in the project's README.
    "V100-16GB": Gpu(15.75, (7, 0), "ultralytics/yolov3, README.md at 0037254"),
    "V100-32GB": Gpu(31.73, (7, 0), "kvcache-ai/ktransformers#526"),
    "A10G": Gpu(21.99, (8, 6), "mistralai/mistral-finetune#69"),
    # 42,298,834,944 bytes by CUDA's deviceQuery, which asks for the same number.
    "A100-40GB": Gpu(39.39, (8, 0), "bottlerocket-os/bottlerocket#3873"),
    "A100-80GB": Gpu(79.14, (8, 0), "lianqi1008/Control-GIC#6"),
    "L4": Gpu(22.03, (8, 9), "ArcInstitute/evo2#190"),
    "L40S": Gpu(44.42, (8, 9), "stepfun-ai/Step-Video-T2V#8"),
    "RTX3090": Gpu(23.70, (8, 6), "Lightning-AI/lit-llama#137"),
    "RTX4090": Gpu(23.52, (8, 9), "Soul-AILab/SoulX-FlashTalk#5"),
    "RTX5090": Gpu(31.36, (12, 0), "TrajectoryCrafter/TrajectoryCrafter#20"),
    "H100-80GB": Gpu(79.11, (9, 0), "vllm-project/vllm#27508"),
    # By PyTorch's messages in public logs, 139.72 to 139.81; the source has nvidia-smi's 143,771 MiB, with the
    # driver's part.
    "H200": Gpu(139.72, (9, 0), "NVIDIA/cuda-samples#311"),
    "B200": Gpu(178.35, (10, 0), "pytorch/ao#4002"),
    # Each of its two dies is a GPU of its own to PyTorch, of 68,702,699,520 bytes by OpenCL.
    "MI250": Gpu(63.98, None, "openmm/openmm#3940"),
    # 201,310,208 KiB by rocminfo.
    "MI300X": Gpu(191.98, None, "ROCm/rocm-examples#187"),
}


def find_gpu(name: str, errors: list[str]) -> Gpu | None:
    """The GPU of this name, however it is written; None and a problem if it is not known."""
    written = {_plain(known): known for known in GPUS}
    if found := written.get(_plain(name)):
        return GPUS[found]
    sizes = [known for plain, known in written.items() if plain.startswith(_plain(name))]
    near = f" (did you mean {' or '.join(sizes)}?)" if sizes else closest(name, GPUS)
    errors.append(f"--gpu {name}: not known{near}; known are {', '.join(GPUS)}")
    return None


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
