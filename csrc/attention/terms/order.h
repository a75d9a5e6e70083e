#pragma once

/// The names of all terms, in the order in which they act on scores. Every list of terms is made of these.
///
/// Cope is last: it counts the keys that no other term hides, and its gates' gradients join those of the product.
#define POSENC_ATTENTION_TERMS(suffix) \
  Piecewise##suffix, Distance##suffix, Decay##suffix, Relative##suffix, Fire##suffix, Bias##suffix, Cope##suffix
