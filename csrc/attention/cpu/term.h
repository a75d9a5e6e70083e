#pragma once

/// The CPU part of a term above its kernels: from the tensors of a call to the data of a head, and back to gradients.

#include "attention/cpu/tables.h"
#include "attention/tile/sink.h"

namespace posenc::attention_ops {

/// Where the queries and keys of a call lie.
struct Geometry {
  int64_t queries, keys;
  /// Positions count up by one on both sides, query i at offset + i, key j at j.
  bool by_index;
  int64_t offset;

  /// The largest distance of a query and a key, where positions count up by one.
  int64_t longest() const { return std::max(std::abs(offset + queries - 1), std::abs(keys - 1 - offset)); }
};

/// What a term may leave out. A term's class XCpu<T> derives from this, has a constructor (const Call&, const
/// Geometry&) and
///   XHead<T> head(int64_t batch, int64_t head) const;
template <typename T>
struct CpuTerm {
  /// Rows that a thread holds for the jobs of its heads.
  struct Rows {
    Rows(const Call& /*c*/, bool /*walked_often*/) {}
    template <typename Head>
    void enter(Head& /*head*/, const JobPlace& /*place*/) {}
  };

  /// Memory that the forward pass fills for the backward pass.
  template <typename Head>
  void enter_residuals(Head& /*head*/, const JobPlace& /*place*/, const Tensor& /*counts*/) const {}

  /// Decoding: whether keys are to be walked from the last to the first, in one part before all others, until the
  /// term's DecodeTerm::stops().
  bool counts_from_query() const { return false; }
  /// The base-2 logit, without a value, that the term adds to the softmax of a query.
  double sink(int64_t /*batch*/, int64_t /*head*/, int64_t /*query*/) const { return kNoSink; }
  /// pack(input, x, scale) gives the rows of queries x in memory of an input, keys_of(input) those of an input with
  /// keys. stopped: the part before has stopped where this one's keys end.
  template <typename Pack, typename KeysOf>
  void enter_decode_rows(DecodeRows<T>& /*rows*/, const Pack& /*pack*/, const KeysOf& /*keys_of*/,
                         bool /*stopped*/) const {}
};

/// Its gradients: XCpuGradients<T> has a constructor (const Call&, const XCpu<T>&, const GradientLayout&, wanted) and
///   XGradient<T> at(const GradientPlace&) const;       where a job adds
///   void results(Gradients& to) const;                 sets what is wanted
/// and where it needs it
///   void end_head(const GradientPlace&, const GradientRows<T>& grad_key) const;
///     after a worker's last job of a head (or of a part of one): adds to the gradients of its keys (data null: not
///     wanted)
/// This is that of a term whose inputs have none.
template <typename Term, typename Gradient>
struct NoGradients {
  NoGradients(const Call& /*c*/, const Term& /*term*/, const GradientLayout& /*layout*/, const Wanted& /*wanted*/) {}
  Gradient at(const GradientPlace& /*place*/) const { return {}; }
  void results(Gradients& /*to*/) const {}
};

}  // namespace posenc::attention_ops
