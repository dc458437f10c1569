#include "bucket_request.h"

#include <utility>

namespace sirtaki {

namespace py = pybind11;

bool BucketRequest::locate(PyObject* const* tensors, std::size_t count) {
  return locate_again(tensors, count) || describe(tensors, count);
}

bool BucketRequest::locate_again(PyObject* const* tensors, std::size_t count) {
  if (count != layouts_.size()) return false;
  for (std::size_t i = 0; i < count; ++i) {
    if (!reader_.read(tensors[i]) || !layouts_[i].fits(reader_.tensor())) return false;
    if (is_lazy(tensors[i], reader_.tensor())) return false;
    builder_.addresses[i] = {reader_.data(), reader_.data()};
  }
  return true;
}

bool BucketRequest::describe(PyObject* const* tensors, std::size_t count) {
  std::vector<Layout> layouts;
  std::vector<TensorSpec> specs;
  std::vector<Address> addresses;
  for (std::size_t i = 0; i < count; ++i) {
    if (!reader_.read(tensors[i]) || is_lazy(tensors[i], reader_.tensor())) return false;
    std::optional<TensorSpec> spec = spec_of(reader_.tensor());
    if (!spec) return false;
    layouts.emplace_back(reader_.tensor());
    specs.push_back(std::move(*spec));
    addresses.push_back({reader_.data(), reader_.data()});
  }
  layouts_ = std::move(layouts);
  builder_.specs = std::move(specs);
  builder_.addresses = std::move(addresses);
  presence_ = py::none();
  return true;
}

void BucketRequest::complete(py::tuple presence) {
  reader_.read(presence[0].ptr());
  const void* const own = reader_.data();
  reader_.read(presence[1].ptr());
  builder_.add(spec_of(reader_.tensor()).value(), {own, reader_.data()});
  builder_.request.tensors = TensorSpecs(builder_.specs);
  presence_ = std::move(presence);
}

Submission BucketRequest::submission(std::string name, std::string_view site, py::handle own,
                                     std::optional<std::uintptr_t> stream) {
  Request& request = builder_.request;
  if (request.site != site) request.site = site;
  Submission made(request, builder_.addresses, nullptr,
                  stream ? ready_on(request, builder_.device(), *stream) : nullptr);
  if (!name.empty()) made.request.name = std::move(name);
  if (!own.is_none() && reader_.read(own.ptr())) made.addresses.back().in = reader_.data();
  return made;
}

std::optional<std::uintptr_t> BucketRequest::stream() const {
  return is_complete() ? current_stream(PyTuple_GET_ITEM(presence_.ptr(), 0), builder_.device()) : std::nullopt;
}

}  // namespace sirtaki
