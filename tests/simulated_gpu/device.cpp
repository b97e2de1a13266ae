// A simulated GPU: PyTorch's PrivateUse1 backend in host memory, which computes on the CPU and refuses what
// CUDA refuses. __init__.py describes it.
#include <torch/extension.h>
#include <torch/library.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

namespace {

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;
constexpr auto SIM = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex DEVICES = 2;
thread_local c10::DeviceIndex current = 0;
c10::Device here() { return {SIM, current}; }

// Makes a device the current one of the thread as long as it lives.
struct On {
  c10::DeviceIndex before = current;
  explicit On(std::optional<c10::Device> device) {
    if (device.has_value() && device->has_index()) current = device->index();
  }
  ~On() { current = before; }
};
const c10::DispatchKeySet CPU_KEYS(c10::DispatchKey::CPU);

bool on_sim(const Tensor& t) { return t.defined() && t.device().type() == SIM; }

// ------------------------------------------------------------------------------------------------------------ memory

std::atomic<int64_t> allocated{0}, peak{0};
bool poison = false;
std::atomic<bool> in_capture{false};  // then values mean nothing, and zeros are indices that exist

struct Piece {
  void* at;
  size_t size;
};

void release(void* given) {
  auto* piece = static_cast<Piece*>(given);
  c10::free_cpu(piece->at);
  allocated -= static_cast<int64_t>(piece->size);
  delete piece;
}

struct SimAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    if (size == 0) return {nullptr, nullptr, &c10::detail::deleteNothing, here()};
    void* at = c10::alloc_cpu(size);
    if (poison || in_capture) std::memset(at, in_capture ? 0 : 0xFF, size);
    int64_t now = allocated += static_cast<int64_t>(size);
    int64_t before = peak;
    while (now > before && !peak.compare_exchange_weak(before, now)) {}
    return {at, new Piece{at, size}, &release, here()};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t size) const override { std::memcpy(to, from, size); }
};
SimAllocator allocator;
REGISTER_ALLOCATOR(SIM, &allocator);

// ------------------------------------------------------------------------------------------------------------- guard

thread_local int64_t stream_now = 0;

struct SimGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return SIM; }
  c10::Device exchangeDevice(c10::Device d) const override {
    c10::Device before = here();
    setDevice(d);
    return before;
  }
  c10::Device getDevice() const override { return here(); }
  void setDevice(c10::Device d) const override {
    TORCH_CHECK(d.index() < DEVICES, "sim: there are ", int(DEVICES), " devices");
    uncheckedSetDevice(d);
  }
  void uncheckedSetDevice(c10::Device d) const noexcept override {
    if (d.has_index()) current = d.index();
  }
  c10::Stream getStream(c10::Device d) const override { return c10::Stream(c10::Stream::UNSAFE, d, stream_now); }
  c10::Stream getDefaultStream(c10::Device d) const override { return c10::Stream(c10::Stream::UNSAFE, d, 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device d, bool) const override { return c10::Stream(c10::Stream::UNSAFE, d, 1); }
  c10::Stream getNewStream(c10::Device d, int) const override { return c10::Stream(c10::Stream::UNSAFE, d, 1); }
  c10::Stream exchangeStream(c10::Stream s) const override {
    c10::Stream before(c10::Stream::UNSAFE, here(), stream_now);
    stream_now = s.id();
    return before;
  }
  void record(void** event, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {
    static int any;
    *event = &any;
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  c10::DeviceIndex deviceCount() const noexcept override { return DEVICES; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(c10::DeviceIndex) const override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, SimGuard);

// -------------------------------------------------------------------------------------------------------- generators

struct SimGenerator final : at::CPUGeneratorImpl {
  explicit SimGenerator(uint64_t seed) : at::CPUGeneratorImpl(seed) { device_ = c10::Device(SIM, 0); }
};

at::Generator& default_generator() {
  static at::Generator made = at::make_generator<SimGenerator>(c10::default_rng_seed_val);
  return made;
}

struct SimHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return DEVICES; }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(c10::DeviceIndex index) const override { current = index; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override { return std::exchange(current, index); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override { return exchangeDevice(index); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override { return default_generator(); }
  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    return at::make_generator<SimGenerator>(c10::default_rng_seed_val);
  }
  at::Device getDeviceFromPtr(void*) const override { return here(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override {
    On on(storage.device());
    auto made = allocator.allocate(size);
    auto kept = std::min(size, storage.nbytes());
    if (kept) std::memcpy(made.get(), storage.data(), kept);
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(made));
    storage.unsafeGetStorageImpl()->set_nbytes(size);
  }
};

// ------------------------------------------------------------------------------------- what waits, and what is recorded

std::mutex lock;
std::map<std::string, int64_t> counts;
PyObject* listener = nullptr;

void tell(const char* kind, const std::string& op) {
  {
    std::lock_guard<std::mutex> held(lock);
    ++counts[std::string(kind) + " " + op];
  }
  if (listener == nullptr) return;
  py::gil_scoped_acquire gil;
  py::reinterpret_borrow<py::object>(listener)(kind, op);  // may raise
}

struct Node {
  c10::OperatorHandle op;
  Stack args;
  std::vector<std::pair<size_t, Tensor>> outs;  // flat number of a result, and where it is to lie
  std::vector<Tensor> alive;
};

struct Recording {
  std::vector<Node> nodes;
  std::vector<std::pair<Tensor, Tensor>> dummy;
  bool broken = false;
};

std::atomic<Recording*> recording{nullptr};

void refuse_in_capture(const std::string& what) {
  auto* now = recording.load();
  if (now == nullptr) return;
  now->broken = true;
  TORCH_CHECK(false, "CUDA error: operation not permitted when stream is capturing (", what, ")");
}

// ----------------------------------------------------------------------------------------- the device's memory as the CPU's

struct Views {
  std::unordered_map<c10::StorageImpl*, c10::Storage> storages;  // of the device -> of the CPU
  std::unordered_map<c10::StorageImpl*, c10::Storage> back;      // of the CPU -> of the device
  std::unordered_map<c10::TensorImpl*, Tensor> origin;           // of the CPU -> of the device

  Tensor view(const Tensor& t) {
    auto* own = t.storage().unsafeGetStorageImpl();
    auto found = storages.find(own);
    if (found == storages.end()) {
      c10::Storage made(
          c10::make_intrusive<c10::StorageImpl>(
              c10::StorageImpl::use_byte_size_t(), own->nbytes(),
              c10::DataPtr(own->mutable_data(), nullptr, &c10::detail::deleteNothing, c10::Device(c10::kCPU)),
              c10::GetCPUAllocator(), true));
      back.emplace(made.unsafeGetStorageImpl(), t.storage());
      found = storages.emplace(own, std::move(made)).first;
    }
    auto made = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(found->second), CPU_KEYS, t.dtype());
    made.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
    if (t.unsafeGetTensorImpl()->is_wrapped_number()) made.unsafeGetTensorImpl()->set_wrapped_number(true);
    origin.emplace(made.unsafeGetTensorImpl(), t);
    return made;
  }

  static c10::DataPtr wrapped(const c10::Storage& of) {  // on the current device
    auto* kept = new c10::Storage(of);
    return {of.mutable_data(), kept, [](void* p) { delete static_cast<c10::Storage*>(p); }, here()};
  }

  Tensor result(const Tensor& t) {
    if (!t.defined() || t.device().type() != c10::kCPU) return t;
    auto same = origin.find(t.unsafeGetTensorImpl());
    if (same != origin.end()) return same->second;
    auto* own = t.storage().unsafeGetStorageImpl();
    auto found = back.find(own);
    if (found == back.end()) {
      c10::Storage made(c10::make_intrusive<c10::StorageImpl>(
          c10::StorageImpl::use_byte_size_t(), own->nbytes(), wrapped(t.storage()), &allocator, true));
      found = back.emplace(own, std::move(made)).first;
    }
    auto made = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(found->second), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), t.dtype());
    made.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
    return made;
  }

  // What was written to: its memory or form may be another now.
  static void written(const Tensor& device, const Tensor& host) {
    auto* s = device.storage().unsafeGetStorageImpl();
    if (host.storage().data() != s->data()) {
      s->set_data_ptr_noswap(wrapped(host.storage()));
      s->set_nbytes(host.storage().nbytes());
    }
    if (device.sizes() != host.sizes() || device.strides() != host.strides() ||
        device.storage_offset() != host.storage_offset())
      device.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
  }
};

template <class F>
void each_tensor(const IValue& value, F&& f) {
  if (value.isTensor()) {
    f(value.toTensor());
  } else if (value.isTensorList()) {
    for (const Tensor& t : value.toTensorVector()) f(t);
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<Tensor>& t : value.toOptionalTensorVector())
      if (t.has_value()) f(*t);
  }
}

template <class F>
IValue mapped(const IValue& value, F&& f) {
  if (value.isTensor()) return f(value.toTensor());
  if (value.isTensorList()) {
    c10::List<Tensor> made;
    for (const Tensor& t : value.toTensorVector()) made.push_back(f(t));
    return made;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> made;
    for (const std::optional<Tensor>& t : value.toOptionalTensorVector())
      made.push_back(t.has_value() ? std::optional<Tensor>(f(*t)) : std::nullopt);
    return made;
  }
  return value;
}

// Runs `call` with the device's generator standing in for the CPU's default one. A recording draws nothing from it.
std::mutex drawing;
template <class F>
void with_draws(bool random, F&& call) {
  if (!random) return call();
  std::lock_guard<std::mutex> held(drawing);
  auto cpu = at::detail::getDefaultCPUGenerator();
  auto& own = default_generator();
  Tensor before = cpu.get_state();
  cpu.set_state(own.get_state());
  struct Restore {
    at::Generator &cpu, &own;
    Tensor& before;
    ~Restore() {
      if (recording.load() == nullptr) own.set_state(cpu.get_state());
      cpu.set_state(before);
    }
  } restore{cpu, own, before};
  call();
}

// Runs an operation on the CPU, in place of its arguments; dropout draws as the CPU's dropout does.
void compute(const c10::OperatorHandle& op, Stack& run) {
  with_draws(op.hasTag(at::Tag::nondeterministic_seeded), [&] {
    if (op.schema().name() == "aten::native_dropout") {
      Tensor in = run[0].toTensor();
      double p = run[1].toDouble();
      Tensor noise = at::empty_like(in).bernoulli_(1 - p);
      Tensor kept = noise.to(at::kBool);
      noise.div_(1 - p);
      run = {in * noise, kept};
      return;
    }
    op.redispatchBoxed(CPU_KEYS, &run);
  });
}

// ---------------------------------------------------------------------------------------------------------- the fallback

const std::unordered_set<std::string> VALUES = {"aten::equal", "aten::is_nonzero", "aten::item",
                                                "aten::_local_scalar_dense", "aten::allclose",
                                                "aten::_assert_async_"};
const std::unordered_set<std::string> SHAPES = {
    "aten::nonzero", "aten::masked_select", "aten::_unique", "aten::_unique2", "aten::unique_dim",
    "aten::unique_consecutive", "aten::unique_dim_consecutive", "aten::bincount", "aten::repeat_interleave",
    "aten::nonzero_numpy"};
const std::unordered_set<std::string> INDEXING = {"aten::index", "aten::index_put", "aten::index_put_",
                                                  "aten::_index_put_impl_", "aten::_unsafe_index",
                                                  "aten::_unsafe_index_put"};

// Batch norm writes its running statistics and its schema does not say so.
bool writes(const std::string& name, const c10::Argument& argument) {
  const auto* alias = argument.alias_info();
  if (alias != nullptr && alias->isWrite()) return true;
  return (name == "aten::native_batch_norm" || name == "aten::batch_norm") &&
         (argument.name() == "running_mean" || argument.name() == "running_var");
}

Tensor scratch(const Tensor& t) {
  Tensor made = at::empty_strided(t.sizes(), t.strides(), t.options());
  made.copy_(t);
  return made;
}

void fallback(const c10::OperatorHandle& op, Stack* stack) {
  const auto& schema = op.schema();
  const std::string& name = schema.name();
  const size_t count = schema.arguments().size();
  const bool indexing = INDEXING.count(name) > 0;
  auto begin = static_cast<ptrdiff_t>(stack->size() - count);
  Stack args(stack->begin() + begin, stack->end());

  bool mask = false, host_index = false, any = false;
  std::optional<c10::Device> place;
  for (size_t i = 0; i < count; ++i) {
    const bool written = writes(name, schema.arguments()[i]);
    const bool indices = indexing && args[i].isOptionalTensorList();
    each_tensor(args[i], [&](const Tensor& t) {
      if (!t.defined()) return;
      if (indices) {
        mask |= t.scalar_type() == at::kBool || t.scalar_type() == at::kByte;
        host_index |= !on_sim(t);
      }
      if (on_sim(t)) {
        any = any || !indices;
        TORCH_CHECK(!place.has_value() || *place == t.device(),
                    "Expected all tensors to be on the same device, but found at least two devices, ", *place, " and ",
                    t.device(), " in ", name);
        place = t.device();
        TORCH_CHECK(t.layout() == at::kStrided, "sim: only strided tensors, in ", name);
        return;
      }
      const bool allowed = indices || (t.dim() == 0 && !written);
      TORCH_CHECK(allowed, "Expected all tensors to be on the same device, but found at least two devices, sim:0 and ",
                  t.device(), " (argument ", schema.arguments()[i].name(), " of ", name, ".", schema.overload_name(),
                  ", shape ", t.sizes(), ")");
    });
    if (args[i].isGenerator())
      TORCH_CHECK(args[i].toGenerator().device().type() == SIM, "Expected a 'sim' device type for generator but found '",
                  args[i].toGenerator().device(), "' in ", name);
  }
  TORCH_CHECK(any || !indexing, "indices should be either on cpu or on the same device as the indexed tensor (cpu)");
  if (VALUES.count(name)) { refuse_in_capture(name); tell("value", name); }
  if (SHAPES.count(name) &&
      !(name == "aten::repeat_interleave" && !args.back().isNone())) { refuse_in_capture(name); tell("shape", name); }
  if (mask) { refuse_in_capture("mask in " + name); tell("mask", name); }
  if (host_index) { refuse_in_capture("host index in " + name); tell("h2d_index", name); }

  if (at::globalContext().deterministicAlgorithms()) {  // what CUDA's deterministic forms do besides
    const bool adds = name == "aten::scatter_add" || name == "aten::scatter_add_";
    if (adds && args[0].isTensor() && args[0].toTensor().dim() > 1) {  // strides go to the device by a blocking copy
      refuse_in_capture("scatter_add in deterministic mode copies from the host; backward of gather");
      tell("h2d", "aten::scatter_add, deterministic");
    }
    if (name == "aten::cumsum" && at::isFloatingType(args[0].toTensor().scalar_type()))
      at::globalContext().alertNotDeterministic("cumsum_cuda_kernel");
  }

  for (const IValue& value : args)
    if (!place.has_value() && value.isDevice() && value.toDevice().type() == SIM) place = value.toDevice();
  On on(place);
  Views views;
  std::vector<std::pair<Tensor, Tensor>> changed;  // device, host
  std::vector<Tensor> alive, hosts;
  auto* now = recording.load();
  for (size_t i = 0; i < count; ++i) {
    const bool written = writes(name, schema.arguments()[i]);
    if (args[i].isDevice() && args[i].toDevice().type() == SIM) args[i] = c10::Device(c10::kCPU);
    if (args[i].isGenerator()) {
      TORCH_CHECK(args[i].toGenerator() == default_generator(), "sim: generators other than the default: not done");
      args[i] = IValue();
    }
    args[i] = mapped(args[i], [&](const Tensor& t) -> Tensor {
      if (!on_sim(t)) return t;
      Tensor host = views.view(t);
      if (now != nullptr) alive.push_back(t);
      if (written && now != nullptr) {
        Tensor other = scratch(host);
        hosts.push_back(host);  // its address stays taken
        views.origin.emplace(other.unsafeGetTensorImpl(), t);
        changed.emplace_back(t, other);
        return other;
      }
      if (written) changed.emplace_back(t, host);
      return host;
    });
  }

  Stack run = args;
  compute(op, run);

  if (now == nullptr) {
    for (auto& [device, host] : changed) Views::written(device, host);
  } else {
    for (auto& [device, host] : changed)
      if (device.sizes() != host.sizes() || device.storage().nbytes() < host.storage().nbytes())
        Views::written(device, host);
  }
  Stack found;
  for (const IValue& value : run) found.push_back(mapped(value, [&](const Tensor& t) { return views.result(t); }));

  if (now != nullptr) {
    Node node{op, {}, {}, alive};
    Views again;
    for (size_t i = 0; i < count; ++i) {
      const IValue& given = (*stack)[static_cast<size_t>(begin) + i];
      if (given.isTensor() || given.isTensorList() || given.isOptionalTensorList())
        node.args.push_back(mapped(given, [&](const Tensor& t) { return on_sim(t) ? again.view(t) : t; }));
      else
        node.args.push_back(args[i]);
    }
    size_t number = 0;
    for (const IValue& value : found)
      each_tensor(value, [&](const Tensor& t) {
        if (on_sim(t)) {
          node.alive.push_back(t);
          bool old = again.storages.count(t.storage().unsafeGetStorageImpl()) > 0;  // written in place, or a view
          if (!old) node.outs.emplace_back(number, again.view(t));
        }
        ++number;
      });
    now->nodes.push_back(std::move(node));
  }
  stack->erase(stack->begin() + begin, stack->end());
  for (IValue& value : found) stack->push_back(std::move(value));
}

void replay(Recording& of) {
  c10::InferenceMode off(false);
  at::NoGradGuard no_grad;
  at::AutoDispatchBelowAutograd below;
  for (Node& node : of.nodes) {
    Stack run = node.args;
    compute(node.op, run);
    std::vector<Tensor> flat;
    for (const IValue& value : run) each_tensor(value, [&](const Tensor& t) { flat.push_back(t); });
    for (auto& [number, where] : node.outs) where.copy_(flat[number]);
  }
}

// --------------------------------------------------------------------------------------------------- ops of its own

Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> type, std::optional<at::Layout> layout,
             std::optional<c10::Device> device, std::optional<bool> pin, std::optional<at::MemoryFormat> format) {
  On on(device);
  TORCH_CHECK(!pin.value_or(false), "Only dense CPU tensors can be pinned");
  TORCH_CHECK(layout.value_or(at::kStrided) == at::kStrided, "sim: only strided tensors");
  return at::detail::empty_generic(size, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(type), format);
}

Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> type,
                     std::optional<at::Layout>, std::optional<c10::Device> device, std::optional<bool>) {
  On on(device);
  return at::detail::empty_strided_generic(size, stride, &allocator,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(type));
}

const c10::OperatorHandle& copying() {
  static auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
  return op;
}

Tensor copy_from(const Tensor& self, const Tensor& dst, bool non_blocking) {
  const bool from = on_sim(self), to = on_sim(dst);
  if (from != to) {
    TORCH_CHECK(recording.load() == nullptr,  // torch's own check: CUDA hears nothing of it, so the capture goes on
                "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is pinned.");
    tell(from ? (non_blocking ? "d2h_async" : "d2h") : (non_blocking ? "h2d_async" : "h2d"), "copy");
  }
  Views views;
  Tensor source = from ? views.view(self) : self, target = to ? views.view(dst) : dst;
  if (auto* now = recording.load()) {
    now->nodes.push_back(Node{copying(), {target, source, true}, {}, {self, dst}});
    return dst;
  }
  at::NoGradGuard no_grad;
  at::AutoDispatchBelowAutograd below;
  target.copy_(source);
  return dst;
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& dst) {
  dst.resize_(self.sizes());
  return copy_from(self, dst, false);
}

at::Scalar local_scalar(const Tensor& self) {
  refuse_in_capture("aten::_local_scalar_dense");
  tell("value", "aten::_local_scalar_dense");
  Views views;
  return at::_local_scalar_dense(views.view(self));
}

const Tensor& resize(const Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  int64_t numel = c10::multiply_integers(size);
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(size);
  if (format.has_value() && *format != at::MemoryFormat::Preserve) impl->empty_tensor_restride(*format);
  size_t bytes = static_cast<size_t>(numel + self.storage_offset()) * self.itemsize();
  if (bytes > self.storage().nbytes())
    at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(self.storage(), bytes);
  return self;
}

Tensor& set_storage(Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  if (stride.empty() && !size.empty()) {
    impl->set_storage_offset(offset);
    impl->set_sizes_contiguous(size);
  } else {
    impl->set_sizes_and_strides(size, stride, offset);
  }
  return self;
}
Tensor& set_source_storage(Tensor& self, at::Storage source) {
  int64_t numel = static_cast<int64_t>(source.nbytes() / self.itemsize());
  return set_storage(self, std::move(source), 0, {numel}, {});
}
Tensor& set_source_tensor(Tensor& self, const Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}
Tensor& set_empty(Tensor& self) {
  On on(self.device());
  return set_storage(self, at::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), 0, allocator.allocate(0), &allocator, true)), 0, {0}, {1});
}
void record_stream(Tensor&, at::Stream) {}
bool is_pinned(const Tensor&, std::optional<at::Device>) { return false; }

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

#define BOXED(NAME) m.impl(NAME, torch::CppFunction::makeFromBoxedFunction<&fallback>())
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("resize_", TORCH_FN(resize));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
  m.impl("set_.source_Storage", TORCH_FN(set_source_storage));
  m.impl("set_.source_Tensor", TORCH_FN(set_source_tensor));
  m.impl("set_", TORCH_FN(set_empty));
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  m.impl("_local_scalar_dense", TORCH_FN(local_scalar));
  m.impl("record_stream", TORCH_FN(record_stream));
  m.impl("is_pinned", TORCH_FN(is_pinned));
  // They have kernels for all devices that would not come here, or would come in parts that the CPU's do not.
  for (const char* name : {"convolution", "convolution_backward", "native_group_norm", "native_layer_norm", "equal",
                           "repeat_interleave.Tensor"})
    BOXED(name);
}

// ------------------------------------------------------------------------------------------------ autocast, as CUDA's

using namespace at;
using namespace at::autocast;
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define _KERNEL_LOW(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define _KERNEL_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define _KERNEL_OPT(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define _KERNEL_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_LOWER_PRECISION_FP(_KERNEL_LOW)
  AT_FORALL_FP32(_KERNEL_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(_KERNEL_OPT)
  AT_FORALL_PROMOTE(_KERNEL_PROMOTE)
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("hooks", [] { at::RegisterPrivateUse1HooksInterface(new SimHooks()); });
  m.def("default_generator", [] { return default_generator(); });
  m.def("current", [] { return int(current); });
  m.def("set_current", [](int index) { current = static_cast<c10::DeviceIndex>(index); });
  m.def("allocated", [] { return allocated.load(); });
  m.def("peak", [] { return peak.load(); });
  m.def("reset_peak", [] { peak = allocated.load(); });
  m.def("poison", [](bool on) { poison = on; });
  m.def("counts", [] { std::lock_guard<std::mutex> held(lock); return counts; });
  m.def("reset_counts", [] { std::lock_guard<std::mutex> held(lock); counts.clear(); });
  m.def("listen", [](py::object what) {
    Py_XDECREF(listener);
    listener = what.is_none() ? nullptr : what.release().ptr();
  });
  m.def("stream", [](int64_t to) { auto before = stream_now; stream_now = to; return before; });
  py::class_<Recording>(m, "Recording")
      .def(py::init<>())
      .def("begin", [](Recording& r) {
        TORCH_CHECK(recording.load() == nullptr, "sim: a capture is under way");
        r.nodes.clear();
        r.broken = false;
        recording = &r;
        in_capture = true;
      })
      .def("end", [](Recording& r) {
        recording = nullptr;
        in_capture = false;
        TORCH_CHECK(!r.broken, "CUDA error: operation failed due to a previous error during capture");
      })
      .def("replay", [](Recording& r) { py::gil_scoped_release free; replay(r); })
      .def("__len__", [](Recording& r) { return r.nodes.size(); });
  m.def("capturing", [] { return recording.load() != nullptr; });
}
