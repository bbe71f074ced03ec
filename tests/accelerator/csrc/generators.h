// The generators of the simulated accelerator. Each draws its numbers from a CPU generator of its own.

#pragma once

#include <ATen/core/Generator.h>

namespace sim {

const at::Generator& default_generator(int device);
at::Generator cpu_generator_of(const at::Generator& generator);

}  // namespace sim
