// The generators of the simulated accelerator. Like CUDA's, a generator is a seed and an offset, in 16 bytes; DTensor
// relies on that.

#pragma once

#include <ATen/core/Generator.h>

namespace sim {

const at::Generator& default_generator(int device);

// Returns the CPU generator of which one operator draws, and moves the offset on. The numbers depend on seed and offset.
at::Generator next_cpu_generator(const at::Generator& generator);

}  // namespace sim
