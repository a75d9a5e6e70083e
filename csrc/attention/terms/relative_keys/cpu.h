#pragma once

#include "attention/cpu/term.h"
#include "attention/terms/relative_keys/head.h"

#include <ATen/core/LegacyTypeDispatch.h>

namespace posenc::attention_ops {

/// Rows in memory of another owner as a tensor.
template <typename T>
Tensor tensor_of_rows(const T* data, int64_t rows, int64_t width, int64_t row) {
  return at::from_blob(const_cast<T*>(data), {rows, width}, {row, 1}, at::TensorOptions().dtype(kScalarType<T>));
}

template <typename T>
class RelativeKeysCpu : public CpuTerm<T> {
 public:
  RelativeKeysCpu(const Call& c, const Geometry& g) {
    if (!c.has(kRelQ)) {
      return;
    }
    const int64_t radius = (c[kRelQ].size(-2) - 1) / 2;
    // Entries of longer distances than there are cannot be reached.
    radius_ = g.by_index ? std::min(radius, std::max(g.longest(), int64_t{1})) : radius;
    unreachable_ = radius - radius_;
    // Entries come in the order of query - key.
    first_ = g.by_index && c.is_causal && !c.block_ids ? radius_ : 0;
    width_ = c.query().size(3);
    table_ = reversed(c) * (c.score_scale() * kLog2E);
  }

  RelativeKeysHead<T> head(int64_t /*batch*/, int64_t head) const {
    if (!table_.defined()) {
      return {};
    }
    return {
        .radius = radius_, .first = first_, .table = table_rows<T>(table_, head), .width = width_, .product = nullptr};
  }

  /// The products of a head's keys with the entries that a query may see: up to (Tk, 2R+1) numbers for each thread.
  class Rows {
   public:
    Rows(const Call& c, bool walked_often) : c_(c), keys_(c, kKey, walked_often) {}

    void enter(RelativeKeysHead<T>& head, const JobPlace& place) {
      if (!head.used()) {
        return;
      }
      if (place.batch != batch_ || place.group != group_ || head.table.data != table_) {
        multiply(head, place);
        batch_ = place.batch;
        group_ = place.group;
        table_ = head.table.data;
      }
      head.product = product_.template const_data_ptr<T>();
    }

   private:
    void multiply(const RelativeKeysHead<T>& head, const JobPlace& place) {
      const at::AutoDispatchBelowADInplaceOrView below;
      const int64_t keys = c_.key().size(2), entries = head.entries() - head.first;
      if (!product_.defined()) {
        product_ = at::empty({keys, product_row(head.radius)}, at::TensorOptions().dtype(kScalarType<T>));
      }
      const PackedRows<T> rows = keys_.head(place);
      const int64_t begin = kRepeatedEntries + head.first, end = begin + entries;
      Tensor product = product_.narrow(1, begin, entries);
      at::mm_out(product, tensor_of_rows(rows.data, keys, head.width, rows.row),
                 tensor_of_rows(head.table.from(head.first).data, entries, head.width, head.table.row).t());
      if (head.first == 0) {
        product_.narrow(1, 0, kRepeatedEntries).copy_(product.narrow(1, 0, 1));
      }
      product_.narrow(1, end, kRepeatedEntries).copy_(product.narrow(1, entries - 1, 1));
    }

    const Call& c_;
    KeyRowsOf<T> keys_;
    Tensor product_;
    int64_t batch_ = -1, group_ = -1;
    const T* table_ = nullptr;
  };

  int64_t radius() const { return radius_; }
  /// The first entry, in the order of query - key, that a query may see.
  int64_t first() const { return first_; }
  /// Entries before the first that some query and key are apart.
  int64_t unreachable() const { return unreachable_; }
  /// The entries in reach, (1 or H, entries, whole vectors), the last one first.
  Tensor reversed(const Call& c) const {
    return packed_table<T>(c[kRelQ].narrow(-2, unreachable_, 2 * radius_ + 1)).flip(1);
  }

 private:
  int64_t radius_ = 0, unreachable_ = 0, first_ = 0, width_ = 0;
  Tensor table_;
};

template <typename T>
class RelativeKeysCpuGradients {
 public:
  RelativeKeysCpuGradients(const Call& c, const RelativeKeysCpu<T>& term, const GradientLayout& layout,
                           const Wanted& wanted)
      : c_(c), radius_(term.radius()), first_(term.first()) {
    if (!c.has(kRelQ) || (!wanted[kRelQ] && !wanted[kKey])) {
      return;
    }
    products_ =
        at::zeros({layout.workers, layout.keys, product_row(radius_)}, at::TensorOptions().dtype(kScalarType<T>));
    table_ = term.reversed(c);
    if (wanted[kRelQ]) {
      sums_.emplace(c[kRelQ], term.unreachable(), entries(), layout.workers);
    }
  }

  RelativeKeysGradient<T> at(const GradientPlace& place) const {
    return {products_.defined() ? products_[place.worker].template mutable_data_ptr<T>() : nullptr};
  }

  /// From the gradients of the products of a head's keys to those of the table and of the keys.
  void end_head(const GradientPlace& place, const GradientRows<T>& grad_key) const {
    if (!products_.defined()) {
      return;
    }
    const at::AutoDispatchBelowADInplaceOrView below;
    const int64_t begin = kRepeatedEntries + first_, seen = entries() - first_;
    const Tensor rows = products_[place.worker], of_entries = rows.narrow(1, begin, seen);
    if (first_ == 0) {
      of_entries.select(1, 0).add_(rows.narrow(1, 0, kRepeatedEntries).sum(1));
    }
    of_entries.select(1, seen - 1).add_(rows.narrow(1, begin + seen, kRepeatedEntries).sum(1));
    const double scale = c_.score_scale();
    const int64_t width = c_.key().size(3);
    if (sums_) {
      Tensor keys = c_.key().select(0, place.batch).select(0, place.group).to(kScalarType<T>);
      if (!keys.isfinite().all().template item<bool>()) {
        // A key that no query sees must not enter the sums.
        keys = keys.masked_fill((of_entries == 0).all(1, /*keepdim=*/true), 0.0);
      }
      const GradientRows<T> to = sums_->rows(place);
      // Entries of the table come in the order of key - query.
      tensor_of_rows(to.data, seen, width, to.row).add_(of_entries.t().mm(keys).flip(0), scale);
    }
    if (grad_key.data != nullptr) {
      const int64_t head = table_.size(0) == 1 ? 0 : place.head;
      tensor_of_rows(grad_key.data, rows.size(0), width, grad_key.row)
          .addmm_(of_entries, table_[head].narrow(0, first_, seen).narrow(1, 0, width), 1.0, scale);
    }
    rows.zero_();
  }

  void results(Gradients& to) const {
    if (sums_) {
      to[kRelQ] = like_input(c_[kRelQ], sums_->result());
    }
  }

 private:
  int64_t entries() const { return 2 * radius_ + 1; }

  const Call& c_;
  int64_t radius_, first_;
  /// (workers, Tk, product_row()), and the entries in reach, reversed.
  Tensor products_, table_;
  std::optional<TableGradients<T>> sums_;
};

}  // namespace posenc::attention_ops
