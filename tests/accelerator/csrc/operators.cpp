#include "operators.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "generators.h"
#include "memory.h"
#include "runtime.h"

namespace sim {

namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

// Whether this thread is inside an operator, whose inputs and results are brought to the CPU and back.
thread_local bool in_operator = false;

bool is_ours(const at::Tensor& tensor) {
  return tensor.is_privateuseone();
}

int stream_of(const at::Tensor& tensor) {
  return current_stream(tensor.device().index());
}

void copy_now(const at::Tensor& to, const at::Tensor& from) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  to.copy_(from);
}

// Queues a copy on a stream. Both are CPU tensors.
void queue_copy(int device, int stream, at::Tensor to, at::Tensor from, int64_t milliseconds) {
  enqueue(device, stream, [to, from, milliseconds] {
    sleep_milliseconds(milliseconds);
    copy_now(to, from);
  });
}

void copy_from_device(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const int device = from.device().index();
  const int stream = stream_of(from);
  if (in_operator) {
    synchronize_stream(device, stream);
    copy_now(to, bytes_of(from));
    return;
  }
  const at::Tensor target = bytes_of(to);
  const at::Tensor source = bytes_of(from);
  auto writing = begin_to_write(to.const_data_ptr());
  enqueue(device, stream, [target, source, writing, milliseconds = knobs().fetch_ms.load()]() mutable {
    sleep_milliseconds(milliseconds);
    copy_now(target, source);
    writing.reset();
  });
  writing.reset();
  if (!non_blocking) {
    synchronize_stream(device, stream);
  }
}

void copy_to_device(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const int device = to.device().index();
  if (in_operator) {
    queue_copy(device, stream_of(to), bytes_of(to), from, knobs().kernel_ms);
    return;
  }
  // Pinned memory is read when the copy is made. Other memory is read now, and its copy arrives late all the same.
  const bool is_read_late = non_blocking && is_pinned(from.const_data_ptr());
  queue_copy(device, stream_of(to), bytes_of(to), is_read_late ? bytes_of(from) : from.clone(), knobs().copy_ms);
}

void copy_between_devices(const at::Tensor& from, const at::Tensor& to) {
  const int device = from.device().index();
  const int other = to.device().index();
  const int stream = stream_of(from);
  if (device != other) {
    wait_in_stream(device, stream, record(other, stream_of(to)));
  }
  queue_copy(device, stream, bytes_of(to), bytes_of(from), knobs().copy_ms);
  if (device != other) {
    wait_in_stream(other, stream_of(to), record(device, stream));
  }
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (to.numel() == 0) {
    return to;
  }
  const at::Tensor source = from.sizes() == to.sizes() ? from : from.expand(to.sizes());
  if (is_ours(source) && is_ours(to)) {
    copy_between_devices(source, to);
  } else if (is_ours(source)) {
    copy_from_device(source, to, non_blocking);
  } else {
    copy_to_device(source, to, non_blocking);
  }
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (from.sizes() != to.sizes()) {
    to.resize_(from.sizes());
  }
  return copy_from(from, to, false);
}

// --- memory and views -----------------------------------------------------------------------------------------------

// With torch.use_deterministic_algorithms() torch fills new memory, by a kernel on the current stream.
at::Tensor fill_if_deterministic(at::Tensor tensor) {
  const auto& context = at::globalContext();
  if (context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory()) {
    at::native::fill_empty_deterministic_(tensor);
  }
  return tensor;
}

c10::Device where(std::optional<c10::Device> device) {
  return c10::device_or_default(device);
}

at::Tensor empty(
    at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> /*layout*/,
    std::optional<at::Device> device, std::optional<bool> /*pin_memory*/, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(where(device));
  return fill_if_deterministic(
      at::detail::empty_generic(size, device_allocator(), kKeys, c10::dtype_or_default(dtype), format));
}

at::Tensor empty_strided(
    at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> /*layout*/, std::optional<at::Device> device, std::optional<bool> /*pin_memory*/) {
  const c10::DeviceGuard guard(where(device));
  return fill_if_deterministic(
      at::detail::empty_strided_generic(size, stride, device_allocator(), kKeys, c10::dtype_or_default(dtype)));
}

at::Tensor as_strided(
    const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride, std::optional<int64_t> offset) {
  return at::cpu::as_strided(self, size, stride, offset);
}

const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  return at::native::resize_(self, size, format);
}

at::Tensor reshape_alias(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride) {
  return at::native::_reshape_alias(self, size, stride);
}

at::Tensor view(const at::Tensor& self, at::IntArrayRef size) {
  return at::native::view(self, size);
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return at::native::set_tensor_(self, source);
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source) {
  return at::native::set_(self, std::move(source));
}

at::Tensor& set_storage_at(
    at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  return at::cpu::set_(self, std::move(source), offset, size, stride);
}

at::Scalar local_scalar(const at::Tensor& self) {
  synchronize_stream(self.device().index(), stream_of(self));
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  return bytes_of(self).item();
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  device_allocator()->recordStream(self.storage().data_ptr(), stream);
}

bool is_pinned_tensor(const at::Tensor& self, std::optional<at::Device> /*device*/) {
  return self.is_cpu() && is_pinned(self.const_data_ptr());
}

// --- everything else ------------------------------------------------------------------------------------------------

std::optional<at::Tensor> first_of_ours(c10::ArrayRef<c10::IValue> values) {
  for (const auto& value : values) {
    if (value.isTensor() && value.toTensor().defined() && is_ours(value.toTensor())) {
      return value.toTensor();
    }
  }
  return std::nullopt;
}

// Puts a CPU generator where an operator takes one: for the device of its first tensor where it is given none.
void replace_generators(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const size_t begin = stack->size() - arguments.size();
  for (size_t number = 0; number < arguments.size(); number++) {
    auto type = arguments[number].type();
    if (auto optional = type->cast<c10::OptionalType>()) {
      type = optional->getElementType();
    }
    if (type->kind() != c10::TypeKind::GeneratorType) {
      continue;
    }
    auto& value = (*stack)[begin + number];
    if (value.isGenerator()) {
      const at::Generator given = value.toGenerator();
      if (given.device().is_privateuseone()) {
        value = next_cpu_generator(given);
      }
    } else if (const auto tensor = first_of_ours(torch::jit::last(*stack, arguments.size()))) {
      value = next_cpu_generator(default_generator(tensor->device().index()));
    }
  }
}

class InOperator {
 public:
  InOperator() : before_(in_operator) {
    in_operator = true;
  }
  ~InOperator() {
    in_operator = before_;
  }
  InOperator(const InOperator&) = delete;
  InOperator& operator=(const InOperator&) = delete;

 private:
  const bool before_;
};

// Waits for the inputs, computes on the CPU, and queues the writing of the results on the current stream.
void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  replace_generators(op, stack);
  const InOperator inside;
  at::native::cpu_fallback(op, stack);
}

at::Tensor convolution(
    const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
    at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding,
    int64_t groups) {
  const InOperator inside;
  const auto shift = bias.has_value() && bias->defined() ? std::optional(bias->cpu()) : std::nullopt;
  return at::convolution(
             input.cpu(), weight.cpu(), shift, stride, padding, dilation, transposed, output_padding, groups)
      .to(input.device());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight, at::IntArrayRef stride,
    at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding, int64_t groups,
    std::array<bool, 3> wanted) {
  const InOperator inside;
  const auto bias_sizes = transposed ? weight.size(1) * groups : weight.size(0);
  auto [of_input, of_weight, of_bias] = at::convolution_backward(
      gradient.cpu(), input.cpu(), weight.cpu(), at::IntArrayRef(bias_sizes), stride, padding, dilation, transposed,
      output_padding, groups, wanted);
  const auto back = [&](const at::Tensor& found) { return found.defined() ? found.to(input.device()) : found; };
  return {back(of_input), back(of_weight), back(of_bias)};
}

// It writes to the running statistics, and its schema does not say so: the CPU fallback would leave them as they are.
std::tuple<at::Tensor, at::Tensor, at::Tensor> batch_norm(
    const at::Tensor& input, const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias,
    const std::optional<at::Tensor>& mean, const std::optional<at::Tensor>& variance, bool training, double momentum,
    double epsilon) {
  const InOperator inside;
  const auto fetch = [](const std::optional<at::Tensor>& given) {
    return given.has_value() && given->defined() ? std::optional(given->cpu()) : std::nullopt;
  };
  const auto new_mean = fetch(mean);
  const auto new_variance = fetch(variance);
  auto [result, batch_mean, batch_deviation] = at::native_batch_norm(
      input.cpu(), fetch(weight), fetch(bias), new_mean, new_variance, training, momentum, epsilon);
  if (training && new_mean.has_value()) {
    copy_from(*new_mean, *mean, false);
  }
  if (training && new_variance.has_value()) {
    copy_from(*new_variance, *variance, false);
  }
  return {result.to(input.device()), batch_mean.to(input.device()), batch_deviation.to(input.device())};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("as_strided", as_strided);
  m.impl("resize_", resize_);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("view", view);
  m.impl("unfold", at::native::unfold);
  m.impl("set_.source_Tensor", set_tensor);
  m.impl("set_.source_Storage", set_storage);
  m.impl("set_.source_Storage_storage_offset", set_storage_at);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar);
  m.impl("record_stream", record_stream);
  m.impl("is_pinned", is_pinned_tensor);
  m.impl("native_batch_norm", batch_norm);
  m.impl("convolution_overrideable", convolution);
  m.impl("convolution_backward_overrideable", convolution_backward);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

}  // namespace

at::Tensor bytes_of(const at::Tensor& tensor) {
  void* at = const_cast<void*>(tensor.const_data_ptr());
  const auto options = tensor.options().device(at::kCPU).pinned_memory(false);
  at::Tensor view;
  if (is_ours(tensor)) {
    view = at::from_blob(host_address(at), tensor.sizes(), tensor.strides(), options);
  } else {
    view = at::from_blob(
        at, tensor.sizes(), tensor.strides(), [storage = tensor.storage()](void*) {}, options);
  }
  if (tensor.is_conj()) {
    view = view.conj();
  }
  return tensor.is_neg() ? at::_neg_view(view) : view;
}

void resize_storage(const c10::Storage& storage, size_t bytes) {
  const c10::DeviceGuard guard(storage.device());
  const int device = storage.device().index();
  const size_t kept = std::min(bytes, storage.nbytes());
  c10::DataPtr fresh = device_allocator()->allocate(bytes);
  if (kept > 0) {
    void* to = host_address(fresh.get());
    const void* from = host_address(storage.data());
    enqueue(device, current_stream(device), [to, from, kept] { std::memcpy(to, from, kept); });
  }
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(fresh));
  storage.unsafeGetStorageImpl()->set_nbytes(bytes);
}

}  // namespace sim
