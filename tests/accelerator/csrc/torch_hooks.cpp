// What torch asks of a backend besides operators: the current device, streams, events, generators, pinned memory.

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstring>

#include "generators.h"
#include "memory.h"
#include "operators.h"
#include "runtime.h"

namespace sim {

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;

constexpr DeviceType kType = DeviceType::PrivateUse1;

Device device(int number) {
  return Device(kType, static_cast<DeviceIndex>(number));
}

int number_of(const Device& device) {
  return device.has_index() ? device.index() : current_device();
}

Stream make_stream(int device_number, int stream) {
  return Stream(Stream::UNSAFE, device(device_number), stream);
}

int number_of(const Stream& stream) {
  return static_cast<int>(stream.id());
}

struct Event {
  RecordingPtr recording;  // the last one
};

struct SimGuard final : c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override {
    return kType;
  }

  Device exchangeDevice(Device to) const override {
    const Device before = getDevice();
    set_current_device(number_of(to));
    return before;
  }

  Device getDevice() const override {
    return device(current_device());
  }

  void setDevice(Device to) const override {
    set_current_device(number_of(to));
  }

  // As CUDA's does, which sets the device once it is used: the end of a guard makes no context.
  void uncheckedSetDevice(Device to) const noexcept override {
    go_back_to_device(number_of(to));
  }

  Stream getStream(Device of) const override {
    return make_stream(number_of(of), current_stream(number_of(of)));
  }

  Stream getDefaultStream(Device of) const override {
    return make_stream(number_of(of), 0);
  }

  Stream getStreamFromGlobalPool(Device of, bool /*is_high_priority*/) const override {
    return make_stream(number_of(of), next_stream(number_of(of)));
  }

  Stream getNewStream(Device of, int /*priority*/) const override {
    return make_stream(number_of(of), next_stream(number_of(of)));
  }

  Stream exchangeStream(Stream to) const override {
    const Stream before = getStream(to.device());
    set_current_stream(to.device_index(), number_of(to));
    return before;
  }

  DeviceIndex deviceCount() const noexcept override {
    return is_plugged_in() ? kDevices : 0;
  }

  bool queryStream(const Stream& stream) const override {
    return is_idle(stream.device_index(), number_of(stream));
  }

  void synchronizeStream(const Stream& stream) const override {
    synchronize_stream(stream.device_index(), number_of(stream));
  }

  void synchronizeDevice(DeviceIndex number) const override {
    synchronize_device(number);
  }

  void record(void** event, const Stream& stream, DeviceIndex /*number*/, c10::EventFlag /*flag*/) const override {
    if (*event == nullptr) {
      *event = new Event();
    }
    static_cast<Event*>(*event)->recording = sim::record(stream.device_index(), number_of(stream));
  }

  void block(void* event, const Stream& stream) const override {
    if (event != nullptr) {
      wait_in_stream(stream.device_index(), number_of(stream), static_cast<Event*>(event)->recording);
    }
  }

  bool queryEvent(void* event) const override {
    return event == nullptr || has_happened(static_cast<Event*>(event)->recording);
  }

  void synchronizeEvent(void* event) const override {
    if (event != nullptr) {
      synchronize(static_cast<Event*>(event)->recording);
    }
  }

  void destroyEvent(void* event, DeviceIndex /*number*/) const noexcept override {
    delete static_cast<Event*>(event);
  }

  double elapsedTime(void* first, void* last, DeviceIndex /*number*/) const override {
    TORCH_CHECK(first != nullptr && last != nullptr, "cannot measure: an event was not recorded");
    return milliseconds_between(static_cast<Event*>(first)->recording, static_cast<Event*>(last)->recording);
  }

  void recordDataPtrOnStream(const c10::DataPtr& pointer, const Stream& stream) const override {
    device_allocator()->recordStream(pointer, stream);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, SimGuard);

// --- generators -----------------------------------------------------------------------------------------------------

constexpr uint64_t kStep = 4;  // by how much an operator moves the offset on: CUDA's is a multiple of it as well

class SimGenerator final : public c10::GeneratorImpl {
 public:
  explicit SimGenerator(DeviceIndex number, uint64_t seed = c10::default_rng_seed_val, uint64_t offset = 0)
      : c10::GeneratorImpl(Device(kType, number), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        seed_(seed),
        offset_(offset) {}

  static DeviceType device_type() {
    return kType;
  }

  void set_current_seed(uint64_t seed) override {
    seed_ = seed;
    offset_ = 0;
  }

  uint64_t current_seed() const override {
    return seed_;
  }

  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return seed_;
  }

  void set_offset(uint64_t offset) override {
    offset_ = offset;
  }

  uint64_t get_offset() const override {
    return offset_;
  }

  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK(
        state.numel() == 2 * sizeof(uint64_t) && state.is_cpu(), "this is no state of the simulated accelerator");
    const auto* words = static_cast<const char*>(state.data());
    std::memcpy(&seed_, words, sizeof(seed_));
    std::memcpy(&offset_, words + sizeof(seed_), sizeof(offset_));
  }

  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    const at::Tensor state = at::empty({2 * sizeof(uint64_t)}, at::TensorOptions(at::kByte).device(at::kCPU));
    auto* words = state.data_ptr<uint8_t>();
    std::memcpy(words, &seed_, sizeof(seed_));
    std::memcpy(words + sizeof(seed_), &offset_, sizeof(offset_));
    return state.getIntrusivePtr();
  }

  at::Generator next_cpu() {
    const std::lock_guard<std::mutex> lock(mutex_);
    const uint64_t mixed = (seed_ + offset_ * 0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9;
    offset_ += kStep;
    return at::detail::createCPUGenerator(mixed >> 32);  // of a seed it takes 32 bits
  }

 private:
  SimGenerator* clone_impl() const override {
    return new SimGenerator(device().index(), seed_, offset_);
  }

  uint64_t seed_;
  uint64_t offset_;
};

// --- the rest -------------------------------------------------------------------------------------------------------

struct SimHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override {
    return true;
  }

  bool isAvailable() const override {
    return is_plugged_in();
  }

  bool hasPrimaryContext(DeviceIndex number) const override {
    return has_context(number);
  }

  void init() const override {}

  DeviceIndex deviceCount() const override {
    return is_plugged_in() ? kDevices : 0;
  }

  void setCurrentDevice(DeviceIndex number) const override {
    set_current_device(number);
  }

  DeviceIndex getCurrentDevice() const override {
    return static_cast<DeviceIndex>(current_device());
  }

  DeviceIndex exchangeDevice(DeviceIndex number) const override {
    const DeviceIndex before = getCurrentDevice();
    if (number >= 0) {
      set_current_device(number);
    }
    return before;
  }

  DeviceIndex maybeExchangeDevice(DeviceIndex number) const override {
    return exchangeDevice(number);
  }

  bool isPinnedPtr(const void* address) const override {
    return is_pinned(address);
  }

  at::Allocator* getPinnedMemoryAllocator() const override {
    return host_allocator();
  }

  Device getDeviceFromPtr(void* address) const override {
    return device(device_of(address));
  }

  const at::Generator& getDefaultGenerator(DeviceIndex number) const override {
    return default_generator(number);
  }

  at::Generator getNewGenerator(DeviceIndex number) const override {
    return at::make_generator<SimGenerator>(number < 0 ? getCurrentDevice() : number);
  }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(storage, bytes);
  }
};

const bool registered [[maybe_unused]] = [] {
  c10::SetAllocator(kType, device_allocator());
  at::setHostAllocator(kType, host_allocator());
  at::RegisterPrivateUse1HooksInterface(new SimHooks());
  return true;
}();

}  // namespace

const at::Generator& default_generator(int number) {
  static auto* generators = new std::vector<at::Generator>{
      at::make_generator<SimGenerator>(DeviceIndex{0}), at::make_generator<SimGenerator>(DeviceIndex{1})};
  return generators->at(number < 0 ? current_device() : number);
}

at::Generator next_cpu_generator(const at::Generator& generator) {
  return at::check_generator<SimGenerator>(generator)->next_cpu();
}

}  // namespace sim
