#pragma once

/// The data of all terms of a head: a tuple with one struct for each term, zero where a head lacks the term.

#include "attention/terms/bias/head.h"
#include "attention/terms/cope/head.h"
#include "attention/terms/decay/head.h"
#include "attention/terms/distance/head.h"
#include "attention/terms/fire/head.h"
#include "attention/terms/grid/head.h"
#include "attention/terms/mask/head.h"
#include "attention/terms/order.h"
#include "attention/terms/piecewise/head.h"
#include "attention/terms/relative/head.h"
#include "attention/terms/relative_keys/head.h"
#include "attention/terms/sinks/head.h"
#include "attention/terms/softcap/head.h"

#include <tuple>

namespace posenc::attention_ops {

template <typename T>
using Heads = std::tuple<POSENC_ATTENTION_TERMS(Head<T>)>;

/// Sums that a job adds the gradients of terms to.
template <typename T>
using HeadGradients = std::tuple<POSENC_ATTENTION_TERMS(Gradient<T>)>;

/// Rows of queries and keys, other than query and key, that terms read in decoding.
template <typename T>
using DecodeRows = std::tuple<PiecewiseRows<T>, RelativeRows<T>, GridRows<T>, CopeRows<T>>;

}  // namespace posenc::attention_ops
