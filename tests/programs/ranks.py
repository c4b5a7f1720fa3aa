"""A PyTorch training of two ranks over gloo, of different batch sizes, started by torchrun or Open MPI's mpirun.

Prints rank and last loss, exact as hex.
"""
import os
import torch, torch.distributed as dist
from torch import nn

for name, of_mpi in ("RANK", "OMPI_COMM_WORLD_RANK"), ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"):
    if of_mpi in os.environ:
        os.environ[name] = os.environ[of_mpi]
dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(*[layer for _ in range(3) for layer in (nn.Linear(256, 256), nn.GELU(), nn.LayerNorm(256))])
given = torch.randn(512 + 128 * dist.get_rank(), 256)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
for step in range(60):
    optimizer.zero_grad(set_to_none=True)
    loss = model(given).square().mean()
    loss.backward()
    gradients = nn.utils.parameters_to_vector(parameter.grad for parameter in model.parameters())
    dist.all_reduce(gradients)
    for parameter, gradient in zip(model.parameters(), gradients.split([p.numel() for p in model.parameters()])):
        parameter.grad.copy_(gradient.view_as(parameter))
    optimizer.step()
# In one piece, for the other rank's may come between two.
os.write(1, f"{dist.get_rank()} {float(loss.detach()).hex()}\n".encode())
dist.destroy_process_group()
