#include "rotary/inplace.h"

#include <ATen/ops/_unique2.h>
#include <ATen/ops/any.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/isin.h>
#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <utility>

namespace posenc::rotary_ops {
namespace {

using at::Tensor;

struct Dim {
  int64_t size, stride;
};

/// Dimensions that move, widest stride first.
c10::SmallVector<Dim, 4> moving_dims(const Tensor& t) {
  c10::SmallVector<Dim, 4> dims;
  for (int64_t i = 0; i < t.dim(); ++i) {
    if (t.size(i) > 1) {
      dims.push_back({t.size(i), t.stride(i)});
    }
  }
  std::sort(dims.begin(), dims.end(), [](const Dim& a, const Dim& b) { return a.stride > b.stride; });
  return dims;
}

/// Elements from the first to the last that dims reach.
int64_t span(c10::ArrayRef<Dim> dims) {
  int64_t last = 0;
  for (const Dim& dim : dims) {
    last += (dim.size - 1) * dim.stride;
  }
  return last + 1;
}

/// The number of each element's place, counted from `origin`.
Tensor places(const Tensor& t, int64_t origin) {
  const int64_t start = t.storage_offset() - origin;
  return at::arange(start + span(moving_dims(t))).as_strided(t.sizes(), t.strides(), start).reshape(-1);
}

/// Whether two indices of t reach the same element.
bool overlaps_itself(const Tensor& t) {
  const auto dims = moving_dims(t);
  bool nested = true;  // each stride steps over all that the narrower ones reach
  for (size_t i = 0; i < dims.size(); ++i) {
    nested = nested && dims[i].stride >= span(c10::ArrayRef<Dim>(dims).slice(i + 1));
  }
  return !nested && std::get<0>(at::_unique2(places(t, t.storage_offset()))).numel() < t.numel();
}

/// Whether strides alone show that two tensors of one storage reach no common element. Slices of a packed projection
/// step alike: within one step of the widest common stride both have to be apart.
bool visibly_apart(const Tensor& a, const Tensor& b) {
  auto dims_a = moving_dims(a), dims_b = moving_dims(b);
  int64_t at_a = a.storage_offset(), at_b = b.storage_offset();
  while (true) {
    if (at_a + span(dims_a) <= at_b || at_b + span(dims_b) <= at_a) {
      return true;
    }
    if (dims_a.empty() || dims_b.empty() || dims_a[0].stride != dims_b[0].stride) {
      return false;
    }
    const int64_t stride = dims_a[0].stride;
    dims_a.erase(dims_a.begin());
    dims_b.erase(dims_b.begin());
    at_a %= stride;
    at_b %= stride;
    if (at_a + span(dims_a) > stride || at_b + span(dims_b) > stride) {
      return false;  // one of them runs into the next step
    }
  }
}

bool overlap(const Tensor& a, const Tensor& b) {
  const int64_t origin = std::min(a.storage_offset(), b.storage_offset());
  return !visibly_apart(a, b) && at::isin(places(a, origin), places(b, origin)).any().item<bool>();
}

}  // namespace

void check_inplace(const char* op, const Tensor& q, const Tensor& k) {
  for (const auto& [name, tensor] : {std::pair<const char*, const Tensor&>{"q", q}, {"k", k}}) {
    TORCH_CHECK(!overlaps_itself(tensor), op, ": expected ", name,
                " to hold each element once, but several indices of its shape ", tensor.sizes(), " and strides ",
                tensor.strides(), " share one; clone it first");
  }
  if (q.numel() > 0 && k.numel() > 0 && q.is_alias_of(k)) {
    TORCH_CHECK(q.scalar_type() == k.scalar_type() && !overlap(q, k), op,
                ": expected q and k to share no element, but they overlap in memory; clone one of them first");
  }
}

}  // namespace posenc::rotary_ops
