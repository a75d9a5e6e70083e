#pragma once

/// The names of all terms, in the order in which they act on scores. Every list of terms is made of these.
///
/// Softcap is first: it takes the gradient of the product before others part it. Cope is last: it counts the keys that
/// no other term hides.
#define POSENC_ATTENTION_TERMS(suffix)                                                                         \
  Softcap##suffix, Piecewise##suffix, Distance##suffix, Decay##suffix, Relative##suffix, RelativeKeys##suffix, \
      Grid##suffix, Fire##suffix, Bias##suffix, Mask##suffix, Sinks##suffix, Cope##suffix
