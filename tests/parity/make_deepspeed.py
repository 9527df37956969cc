#!/usr/bin/env python3
"""What DeepSpeed's own schedulers and its CPU Adam make of some settings: tests/parity/deepspeed.json.

    make_deepspeed.py SOURCE > tests/parity/deepspeed.json

SOURCE is DeepSpeed's source tree, as `pip download --no-deps --no-binary :all: deepspeed==0.19.6` brings it. Its scheduler module is run as it
is, only without the rest of the package; of its C++ Adam, the scalar step is cut out of the file and compiled with g++ (no torch, no vectors).

  schedules: params, the optimizer's lr, and "rates": what the optimizer has in each step. As in DeepSpeed's engine the scheduler steps after the
             optimizer, so that the first step has what the scheduler's constructor sets.
  adam:      lr of each step, betas, eps, weight decay; gradients of each step; parameters, first and second moments after the last.
"""
import importlib.util
import json
import logging
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import types

import torch

SCHEDULES = [
    ("WarmupLR", 1e-3, dict(warmup_num_steps=4)),
    ("WarmupLR", 1e-3, dict(warmup_min_lr=1e-5, warmup_max_lr=2e-3, warmup_num_steps=7)),
    ("WarmupLR", 1e-3, dict(warmup_min_lr=1e-5, warmup_max_lr=2e-3, warmup_num_steps=7, warmup_type="linear")),
    ("WarmupLR", 1e-3, dict(warmup_num_steps=1)),
    ("WarmupLR", 1e-3, dict()),
    ("WarmupDecayLR", 3e-4, dict(total_num_steps=25)),
    ("WarmupDecayLR", 3e-4, dict(total_num_steps=25, warmup_num_steps=6, warmup_max_lr=5e-4, warmup_min_lr=1e-6)),
    ("WarmupDecayLR", 3e-4, dict(total_num_steps=25, warmup_num_steps=6, warmup_max_lr=5e-4, warmup_type="linear")),
    ("WarmupDecayLR", 3e-4, dict(total_num_steps=5, warmup_num_steps=9, warmup_max_lr=5e-4)),
    ("WarmupCosineLR", 2e-4, dict(total_num_steps=25, warmup_num_steps=6)),
    ("WarmupCosineLR", 2e-4, dict(total_num_steps=25, warmup_num_steps=6, warmup_min_ratio=0.1, cos_min_ratio=0.05, warmup_type="linear")),
    ("WarmupCosineLR", 2e-4, dict(total_num_steps=5, warmup_num_steps=9)),
]
STEPS = 32

HARNESS = """
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>
#include "cpu_adam.h"
%s
int main() {
  int n, steps; float betas[2], eps, decay;
  auto read = [](auto* to, size_t count) { if (fread(to, sizeof *to, count, stdin) != count) std::abort(); };
  read(&n, 1); read(&steps, 1); read(betas, 2); read(&eps, 1); read(&decay, 1);
  std::vector<float> p(n), m(n), v(n), g(n);
  read(p.data(), n);
  Adam_Optimizer adam(1e-3f, betas[0], betas[1], eps, decay, true);
  for (int t = 1; t <= steps; ++t) {
    float lr; read(&lr, 1); read(g.data(), n);
    adam.IncrementStep(t, betas[0], betas[1]);
    adam.update_state(lr, eps, decay, true);
    adam.Step_1(p.data(), g.data(), m.data(), v.data(), n, false);
  }
  for (auto* out : {&p, &m, &v}) fwrite(out->data(), sizeof(float), n, stdout);
}
"""


def schedules(source):
    package = types.ModuleType("deepspeed.utils")
    package.logger = logging.getLogger("deepspeed")
    package.logger.disabled = True
    sys.modules.update({"deepspeed": types.ModuleType("deepspeed"), "deepspeed.utils": package})
    spec = importlib.util.spec_from_file_location("lr_schedules", source / "deepspeed/runtime/lr_schedules.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = []
    for kind, lr, params in SCHEDULES:
        optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=lr)
        scheduler = getattr(module, kind)(optimizer, **params)
        rates = []
        for _ in range(STEPS):
            rates.append(optimizer.param_groups[0]["lr"])
            scheduler.step()
        made.append({"type": kind, "lr": lr, "params": params, "rates": rates})
    return made


def adam(source):
    text = (source / "csrc/adam/cpu_adam_impl.cpp").read_text()
    begin = text.index("template <typename ds_params_precision_t")
    end = text.index("template <typename ds_params_precision_t", begin + 1)
    numbers = random.Random(1)
    single = lambda x: struct.unpack("f", struct.pack("f", x))[0]
    n, steps, betas, eps, decay = 24, 7, (0.9, 0.95), 1e-8, 0.1
    parameters = [single(numbers.gauss(0, 0.5)) for _ in range(n)]
    rates = [single(1e-2 * (1 - t / 10)) for t in range(steps)]
    gradients = [[single(numbers.gauss(0, 10.0 ** numbers.randint(-4, 1))) for _ in range(n)] for _ in range(steps)]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "torch").mkdir()
        (folder / "torch/extension.h").write_text("namespace torch { class Tensor; }\n")
        (folder / "harness.cc").write_text(HARNESS % text[begin:end])
        subprocess.run(["g++", "-std=c++17", "-O1", "-ffp-contract=off", "-I", folder, "-I", source / "csrc/includes", folder / "harness.cc", "-o",
                        folder / "harness"], check=True)
        given = struct.pack("ii4f", n, steps, *betas, eps, decay) + struct.pack(f"{n}f", *parameters)
        for rate, gradient in zip(rates, gradients):
            given += struct.pack("f", rate) + struct.pack(f"{n}f", *gradient)
        out = struct.unpack(f"{3 * n}f", subprocess.run([folder / "harness"], input=given, stdout=subprocess.PIPE, check=True).stdout)
    return {"betas": betas, "eps": eps, "weight_decay": decay, "lr": rates, "gradients": gradients, "before": parameters, "after": out[:n],
            "moment1": out[n:2 * n], "moment2": out[2 * n:]}


def main():
    source = pathlib.Path(sys.argv[1])
    version = (source / "version.txt").read_text().strip()
    rows = ",\n".join(json.dumps(schedule) for schedule in schedules(source))
    fields = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in adam(source).items())
    print(f'{{"deepspeed": {json.dumps(version)},\n"schedules": [\n{rows}],\n"adam": {{\n{fields}}}}}')


if __name__ == "__main__":
    main()
