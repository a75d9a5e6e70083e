#pragma once

#include "attention/cpu/term.h"
#include "attention/terms/cope/head.h"
#include "attention/terms/list.h"

namespace posenc::attention_ops {

template <typename T>
class CopeCpu : public CpuTerm<T> {
 public:
  CopeCpu(const Call& c, const Geometry& g) : c_(c) {
    if (!c.has(kPosEmb)) {
      return;
    }
    // No position exceeds the number of keys, so the last entry of a longer table is out of reach, as that kept is.
    const int64_t entries = std::min(c[kPosEmb].size(2), g.keys + 2);
    table_ = packed_table<T>(c[kPosEmb].narrow(2, 0, entries).transpose(1, 2));
    gate_bias_ = c.has(kGateBias) ? c[kGateBias].to(at::kDouble).contiguous() : Tensor();
    for_each_used_term(c, [&](auto term) { others_ = others_ || !std::is_same_v<decltype(term), Cope>; });
  }

  CopeHead<T> head(int64_t /*batch*/, int64_t head) const {
    CopeHead<T> h{};
    if (table_.defined()) {
      h.table = table_rows<T>(table_, head);
      h.entries = table_.size(1);
      h.scale = c_.scale_position_logits ? c_.score_scale() : 1.0;
      h.gate_scale = c_.score_scale();
      h.gate_bias = gate_bias_.defined() ? gate_bias_.const_data_ptr<double>()[head] : 0.0;
      h.has_gate_keys = c_.has(kGateKey);
      h.copies_product = others_;
      h.caps_sum = c_.caps_sum();
      h.caps_product = c_.softcap && !h.caps_sum;
    }
    return h;
  }

  struct Rows {
    Rows(const Call& c, bool walked_often) : gate_key(c, kGateKey, walked_often) {}
    void enter(CopeHead<T>& head, const JobPlace& place) {
      if (head.has_gate_keys) {
        head.gate_key = gate_key.head(place);
      }
    }
    KeyRowsOf<T> gate_key;
  };

  /// counts: as results.h has them, or no elements where not wanted.
  void enter_residuals(CopeHead<T>& head, const JobPlace& place, const Tensor& counts) const {
    if (!table_.defined() || counts.numel() == 0) {
      return;
    }
    Fraction<T>* first =
        counts.mutable_data_ptr<Fraction<T>>() + place.batch * counts.stride(0) + place.head * counts.stride(1);
    head.counts = {first, first + counts.stride(2), first + 2 * counts.stride(2)};
  }

  bool counts_from_query() const { return table_.defined(); }

  template <typename Pack, typename KeysOf>
  void enter_decode_rows(DecodeRows<T>& rows, const Pack& pack, const KeysOf& keys_of, bool stopped) const {
    if (table_.defined()) {
      CopeRows<T>& to = std::get<CopeRows<T>>(rows);
      to.query = pack(kPosEmb, c_.query(), head(0, 0).scale);
      to.gate_key = c_.has(kGateKey) ? keys_of(kGateKey) : ConstRows{};
      to.saturated = stopped;
    }
  }

  int64_t entries() const { return table_.size(1); }

 private:
  const Call& c_;
  Tensor table_, gate_bias_;
  bool others_ = false;
};

template <typename T>
class CopeCpuGradients {
 public:
  CopeCpuGradients(const Call& c, const CopeCpu<T>& term, const GradientLayout& layout, const Wanted& wanted) : c_(c) {
    if (wanted[kPosEmb]) {
      table_.emplace(c[kPosEmb].transpose(1, 2), 0, term.entries(), layout.workers);
    }
    if (wanted[kGateKey]) {
      gate_key_.emplace(c[kGateKey], layout.parts);
    }
    if (wanted[kGateBias]) {
      gate_bias_ = HeadSums(layout, 1);
    }
  }

  CopeGradient<T> at(const GradientPlace& place) const {
    return {table_ ? table_->rows(place) : GradientRows<T>{}, gate_key_ ? gate_key_->rows(place) : GradientRows<T>{},
            gate_bias_.at(place)};
  }

  void results(Gradients& to) const {
    if (table_) {
      to[kPosEmb] = like_input(c_[kPosEmb], table_->result().transpose(1, 2));
    }
    if (gate_key_) {
      to[kGateKey] = gate_key_->result();
    }
    if (gate_bias_.sums().defined()) {
      to[kGateBias] = like_input(c_[kGateBias], gate_bias_.sums().squeeze(3).sum({0, 1}));
    }
  }

 private:
  const Call& c_;
  std::optional<TableGradients<T>> table_;
  std::optional<KeyGradients<T>> gate_key_;
  HeadSums gate_bias_;
};

}  // namespace posenc::attention_ops
