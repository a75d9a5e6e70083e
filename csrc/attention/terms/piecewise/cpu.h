#pragma once

#include "attention/cpu/term.h"
#include "attention/terms/piecewise/head.h"

namespace posenc::attention_ops {

template <typename T>
class PiecewiseCpu : public CpuTerm<T> {
 public:
  PiecewiseCpu(const Call& c, const Geometry& /*g*/) : c_(c) {}

  PiecewiseHead<T> head(int64_t /*batch*/, int64_t /*head*/) const {
    PiecewiseHead<T> h{};
    h.far = c_.has(kFarQuery);
    h.threshold = c_.threshold;
    return h;
  }

  struct Rows {
    Rows(const Call& c, bool walked_often) : c(c), key(c, kFarKey, walked_often) {}
    void enter(PiecewiseHead<T>& head, const JobPlace& place) {
      if (head.far) {
        head.query = rows_of(c[kFarQuery], place.batch, place.head, place.first_query);
        head.key = key.head(place);
      }
    }
    const Call& c;
    KeyRowsOf<T> key;
  };

  template <typename Pack, typename KeysOf>
  void enter_decode_rows(DecodeRows<T>& rows, const Pack& pack, const KeysOf& keys_of, bool /*stopped*/) const {
    if (c_.has(kFarQuery)) {
      std::get<PiecewiseRows<T>>(rows) = {pack(kFarQuery, c_[kFarQuery], c_.score_scale()), keys_of(kFarKey)};
    }
  }

 private:
  const Call& c_;
};

template <typename T>
class PiecewiseCpuGradients {
 public:
  PiecewiseCpuGradients(const Call& c, const PiecewiseCpu<T>& /*term*/, const GradientLayout& layout,
                        const Wanted& wanted) {
    if (wanted[kFarKey]) {
      key_.emplace(c[kFarKey], layout.parts);
    }
    if (wanted[kFarQuery]) {
      query_ = at::empty_like(c[kFarQuery]);
    }
  }

  PiecewiseGradient<T> at(const GradientPlace& place) const {
    return {key_ ? key_->rows(place) : GradientRows<T>{},
            query_.defined() ? mutable_rows_of(query_, place.batch, place.head, place.first_query) : MutableRows{}};
  }

  void results(Gradients& to) const {
    if (key_) {
      to[kFarKey] = key_->result();
    }
    if (query_.defined()) {
      to[kFarQuery] = query_;
    }
  }

 private:
  std::optional<KeyGradients<T>> key_;
  Tensor query_;
};

}  // namespace posenc::attention_ops
