"""Number formats side by side: how far they reach, how fine they are, and what that does to a gradient and a weight.

python recipes/formats.py
"""

import argparse

from rungwise.terminal import print_anything

import torch

FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# Of a gradient as they are late in training, and of fp16's loss scale as it begins.
GRADIENT = 1e-8
LOSS_SCALE = 2.0**16
UPDATE = 1e-3


def main() -> None:
    """Prints what PyTorch says of the formats, and what becomes of a gradient and of an update in them."""
    print_anything()
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print("format  bytes      largest  smallest normal  smallest  next after 1")
    for name, dtype in FORMATS.items():
        info = torch.finfo(dtype)
        smallest = info.smallest_normal * info.eps
        sizes = f"{info.max:>11.4e}  {info.smallest_normal:>15.3e}  {smallest:>8.1e}  {1 + info.eps:.8f}"
        print(f"{name:<6}  {dtype.itemsize:>5}  {sizes}")
    print(f"\na gradient of {GRADIENT:.0e}, computed in")
    for name, dtype in FORMATS.items():
        print(f"  {name}: {gradient(dtype):.3e}")
    print(f"  fp16, the loss times {LOSS_SCALE:,.0f}, the gradient divided by it: {gradient(torch.float16, True):.3e}")
    print(f"\na weight of 1 less {UPDATE:.0e}, ten times, kept in")
    for name, dtype in FORMATS.items():
        print(f"  {name}: {updated(dtype):.6f}")


def gradient(dtype: torch.dtype, scaled: bool = False) -> float:
    """The gradient of an fp32 weight whose products are in `dtype`, by autograd and PyTorch's own loss scaling."""
    scaler = torch.amp.GradScaler("cpu", init_scale=LOSS_SCALE, enabled=scaled)
    weight = torch.ones((), requires_grad=True)
    optimizer = torch.optim.SGD([weight])
    factor = torch.tensor(GRADIENT).sqrt()
    # As in a model: the product in half precision, the loss behind it in fp32.
    loss = (weight.to(dtype) * factor.to(dtype)).float() * factor
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    return weight.grad.item()


def updated(dtype: torch.dtype) -> float:
    """A weight of 1 after ten updates, each rounded to `dtype`."""
    weight = torch.ones((), dtype=dtype)
    for _ in range(10):
        weight -= UPDATE
    return weight.item()


if __name__ == "__main__":
    main()
