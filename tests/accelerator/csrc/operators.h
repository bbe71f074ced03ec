// The operators of the simulated accelerator. They compute on the CPU, and write their results late.

#pragma once

#include <c10/core/Storage.h>

namespace sim {

void resize_storage(const c10::Storage& storage, size_t bytes);

}  // namespace sim
