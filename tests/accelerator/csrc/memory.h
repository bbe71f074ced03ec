// The allocators of the simulated accelerator: of device memory, and of pinned memory of the host.

#pragma once

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>

namespace sim {

c10::DeviceAllocator* device_allocator();
at::HostAllocator* host_allocator();

bool is_pinned(const void* address);

// Pins memory that something else has allocated. Raises where pinning is refused or the memory is pinned already.
void pin_memory_of_others(void* address, size_t size);
void unpin_memory_of_others(void* address);

// Forgets all blocks of device memory. Tensors that still exist may be freed, and nothing else.
void forget_device_memory();

}  // namespace sim
