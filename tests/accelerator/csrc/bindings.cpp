// What Python sees of the simulated accelerator.

#include <ATen/core/Generator.h>
#include <torch/csrc/utils/pybind.h>

#include "collectives.h"
#include "generators.h"
#include "memory.h"
#include "runtime.h"

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("plug_in", &sim::plug_in);
  m.def("unplug", [] {
    sim::unplug();
    sim::forget_memory();
  });
  m.def("is_plugged_in", &sim::is_plugged_in);
  m.def("is_initialized", &sim::is_initialized);
  m.def("is_forked", &sim::is_forked);
  m.def("has_context", &sim::has_context);
  m.def("break_device", [](int device) { sim::break_device(device, "a test has broken it"); });
  m.def("set_delays", [](int64_t kernel_ms, int64_t copy_ms, int64_t fetch_ms) {
    sim::knobs().kernel_ms = kernel_ms;
    sim::knobs().copy_ms = copy_ms;
    sim::knobs().fetch_ms = fetch_ms;
  });
  m.def("set_largest_allocation", [](int64_t value) { sim::knobs().largest_allocation = value; });
  m.def("set_refuses_pinning", [](bool value) { sim::knobs().refuses_pinning = value; });
  m.def("pin", [](uintptr_t address, size_t size) {
    sim::pin_memory_of_others(reinterpret_cast<void*>(address), size);
  });
  m.def("unpin", [](uintptr_t address) { sim::unpin_memory_of_others(reinterpret_cast<void*>(address)); });
  m.def("is_pinned", [](uintptr_t address) { return sim::is_pinned(reinterpret_cast<void*>(address)); });
  m.def("torn_unpins", &sim::torn_unpins);
  m.def("pinned_bytes", &sim::pinned_bytes);
  m.def("memory_info", [](int device) {
    return sim::device_allocator()->getMemoryInfo(static_cast<c10::DeviceIndex>(device));
  });
  m.def("default_generator", [](int device) { return sim::default_generator(device); });
  m.def("make_collectives", &sim::make_collectives);
}
