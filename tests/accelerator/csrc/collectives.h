// Collectives between processes on memory of the simulated accelerator.

#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace sim {

// Returns a backend for a process group. `host` does the work, on the bytes behind the devices' addresses.
c10::intrusive_ptr<c10d::Backend> make_collectives(const c10::intrusive_ptr<c10d::Backend>& host);

}  // namespace sim
