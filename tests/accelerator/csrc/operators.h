// The operators of the simulated accelerator. They compute on the CPU, and write their results late.

#pragma once

#include <ATen/core/Tensor.h>

namespace sim {

// Returns a CPU tensor over the bytes of any tensor. It holds a host tensor's storage, and nothing of a device: its
// memory may be given to others while work is queued, as on CUDA.
at::Tensor bytes_of(const at::Tensor& tensor);

void resize_storage(const c10::Storage& storage, size_t bytes);

}  // namespace sim
