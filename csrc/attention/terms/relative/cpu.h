#pragma once

#include "attention/cpu/term.h"
#include "attention/terms/relative/head.h"

namespace posenc::attention_ops {

template <typename T>
class RelativeCpu : public CpuTerm<T> {
 public:
  RelativeCpu(const Call& c, const Geometry& g) : c_(c) {
    if (!c.has(kRelK)) {
      return;
    }
    const int64_t radius = (c[kRelK].size(-2) - 1) / 2;
    // Entries of longer distances than there are cannot be reached.
    radius_ = g.by_index ? std::min(radius, std::max(g.longest(), int64_t{1})) : radius;
    unreachable_ = radius - radius_;
    key_ = packed_table<T>(c[kRelK]);
    value_ = c.has(kRelV) ? packed_table<T>(c[kRelV]) : Tensor();
  }

  RelativeHead<T> head(int64_t /*batch*/, int64_t head) const {
    if (!key_.defined()) {
      return {};
    }
    const auto rows = [&](const Tensor& table) { return table_rows<T>(table, head).from(unreachable_); };
    return {.radius = radius_,
            .has_query = c_.has(kRelQuery),
            .query = {},
            .width = c_[kRelK].size(-1),
            .key = rows(key_),
            .value = value_.defined() ? rows(value_) : PackedRows<T>{}};
  }

  struct Rows {
    Rows(const Call& c, bool /*walked_often*/) : c(c) {}
    void enter(RelativeHead<T>& head, const JobPlace& place) {
      if (head.has_query) {
        head.query = rows_of(c[kRelQuery], place.batch, place.head, place.first_query);
      }
    }
    const Call& c;
  };

  template <typename Pack, typename KeysOf>
  void enter_decode_rows(DecodeRows<T>& rows, const Pack& pack, const KeysOf& /*keys_of*/, bool /*stopped*/) const {
    if (c_.has(kRelQuery)) {
      std::get<RelativeRows<T>>(rows).query = pack(kRelQuery, c_[kRelQuery], c_.score_scale());
    }
  }

  /// Entries before the first that some query and key are apart.
  int64_t unreachable() const { return unreachable_; }

 private:
  const Call& c_;
  int64_t radius_ = 0, unreachable_ = 0;
  Tensor key_, value_;
};

template <typename T>
class RelativeCpuGradients {
 public:
  RelativeCpuGradients(const Call& c, const RelativeCpu<T>& term, const GradientLayout& layout, const Wanted& wanted)
      : c_(c) {
    const auto make = [&](Input input, std::optional<TableGradients<T>>& sums) {
      if (wanted[input]) {
        const int64_t unreachable = term.unreachable();
        sums.emplace(c[input], unreachable, c[input].size(-2) - 2 * unreachable, layout.workers);
      }
    };
    make(kRelK, key_);
    make(kRelV, value_);
    if (wanted[kRelQuery]) {
      query_ = at::empty_like(c[kRelQuery]);
    }
  }

  RelativeGradient<T> at(const GradientPlace& place) const {
    return {key_ ? key_->rows(place) : GradientRows<T>{}, value_ ? value_->rows(place) : GradientRows<T>{},
            query_.defined() ? mutable_rows_of(query_, place.batch, place.head, place.first_query) : MutableRows{}};
  }

  void results(Gradients& to) const {
    if (key_) {
      to[kRelK] = like_input(c_[kRelK], key_->result());
    }
    if (value_) {
      to[kRelV] = like_input(c_[kRelV], value_->result());
    }
    if (query_.defined()) {
      to[kRelQuery] = query_;
    }
  }

 private:
  const Call& c_;
  std::optional<TableGradients<T>> key_, value_;
  Tensor query_;
};

}  // namespace posenc::attention_ops
