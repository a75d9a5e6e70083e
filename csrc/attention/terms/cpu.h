#pragma once

/// The CPU parts of all terms: what a call makes of each.

#include "attention/terms/bias/cpu.h"
#include "attention/terms/cope/cpu.h"
#include "attention/terms/decay/cpu.h"
#include "attention/terms/distance/cpu.h"
#include "attention/terms/fire/cpu.h"
#include "attention/terms/grid/cpu.h"
#include "attention/terms/heads.h"
#include "attention/terms/mask/cpu.h"
#include "attention/terms/order.h"
#include "attention/terms/piecewise/cpu.h"
#include "attention/terms/relative/cpu.h"
#include "attention/terms/relative_keys/cpu.h"
#include "attention/terms/sinks/cpu.h"
#include "attention/terms/softcap/cpu.h"

namespace posenc::attention_ops {

template <typename T>
struct CpuTermsOf {
  template <template <typename> class... Term>
  class List {
   public:
    List(const Call& c, const Geometry& g) : terms_(Term<T>(c, g)...) {}

    Heads<T> heads(int64_t batch, int64_t head) const {
      return std::apply([&](const auto&... term) { return Heads<T>{term.head(batch, head)...}; }, terms_);
    }

    template <size_t i>
    const auto& get() const {
      return std::get<i>(terms_);
    }

    /// Sets what the forward pass leaves for the backward pass.
    void enter_residuals(Heads<T>& heads, const JobPlace& place, const Tensor& counts) const {
      enter_residuals(heads, place, counts, std::index_sequence_for<Term<T>...>());
    }

    bool counts_from_query() const {
      return std::apply([](const auto&... term) { return (term.counts_from_query() || ...); }, terms_);
    }

    /// The sink of a query; one term at most has one.
    double sink(int64_t batch, int64_t head, int64_t query) const {
      double sink = kNoSink;
      const auto take = [&](double of_term) { sink = of_term == kNoSink ? sink : of_term; };
      std::apply([&](const auto&... term) { (take(term.sink(batch, head, query)), ...); }, terms_);
      return sink;
    }

    template <typename Pack, typename KeysOf>
    DecodeRows<T> decode_rows(const Pack& pack, const KeysOf& keys_of, bool stopped) const {
      DecodeRows<T> rows{};
      std::apply([&](const auto&... term) { (term.enter_decode_rows(rows, pack, keys_of, stopped), ...); }, terms_);
      return rows;
    }

    /// What a thread holds of the rows that terms read.
    class Rows {
     public:
      Rows(const Call& c, bool walked_often) : rows_(typename Term<T>::Rows(c, walked_often)...) {}
      void enter(Heads<T>& heads, const JobPlace& place) { enter(heads, place, std::index_sequence_for<Term<T>...>()); }

     private:
      template <size_t... i>
      void enter(Heads<T>& heads, const JobPlace& place, std::index_sequence<i...>) {
        (std::get<i>(rows_).enter(std::get<i>(heads), place), ...);
      }
      std::tuple<typename Term<T>::Rows...> rows_;
    };

   private:
    template <size_t... i>
    void enter_residuals(Heads<T>& heads, const JobPlace& place, const Tensor& counts,
                         std::index_sequence<i...>) const {
      (std::get<i>(terms_).enter_residuals(std::get<i>(heads), place, counts), ...);
    }
    std::tuple<Term<T>...> terms_;
  };
};
template <typename T>
using CpuTerms = typename CpuTermsOf<T>::template List<POSENC_ATTENTION_TERMS(Cpu)>;

/// The sums of the terms' gradients.
template <typename T>
class CpuTermGradients {
 public:
  CpuTermGradients(const Call& c, const CpuTerms<T>& terms, const GradientLayout& layout, const Wanted& wanted)
      : gradients_(make(c, terms, layout, wanted, std::make_index_sequence<std::tuple_size_v<Heads<T>>>())) {}

  HeadGradients<T> at(const GradientPlace& place) const {
    return std::apply([&](const auto&... each) { return HeadGradients<T>{each.at(place)...}; }, gradients_);
  }

  /// After a worker's last job of a head, or of a part of it.
  void end_head(const GradientPlace& place, const GradientRows<T>& grad_key) const {
    const auto end = [&](const auto& each) {
      if constexpr (requires { each.end_head(place, grad_key); }) {
        each.end_head(place, grad_key);
      }
    };
    std::apply([&](const auto&... each) { (end(each), ...); }, gradients_);
  }

  void results(Gradients& to) const {
    std::apply([&](const auto&... each) { (each.results(to), ...); }, gradients_);
  }

 private:
  using Tuple = std::tuple<POSENC_ATTENTION_TERMS(CpuGradients<T>)>;

  template <size_t... i>
  static Tuple make(const Call& c, const CpuTerms<T>& terms, const GradientLayout& layout, const Wanted& wanted,
                    std::index_sequence<i...>) {
    return Tuple{std::tuple_element_t<i, Tuple>(c, terms.template get<i>(), layout, wanted)...};
  }

  Tuple gradients_;
};

}  // namespace posenc::attention_ops
