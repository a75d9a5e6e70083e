#pragma once

/// What attention takes in addition to query, key and value. Each argument is one row here; the options of the C++
/// functions (posenc/ops_attention.h), the schemas of the ops and everything between them follow from the rows.
///
/// Shapes: B batch, H query heads, G key and value heads, Tq queries, Tk keys, D head width, Dv value width.
///
///   INPUT(slot, name)              a tensor that may have a gradient
///   TENSOR(name)                   a tensor that has none
///   OPTION(type, name, default)    anything else

/// Keywords of every function.
#define POSENC_ATTENTION_TERM_INPUTS(INPUT)                                                                       \
  /* (B, G, Tk, D): forms the gates of CoPE instead of key. Pass value for gates from values. */                  \
  INPUT(kGateKey, gate_key)                                                                                       \
  /* (H): added to the logits of CoPE's gates. */                                                                 \
  INPUT(kGateBias, gate_bias)                                                                                     \
  /* (H) or (B, H): adds -slope * |q_position - k_position|. */                                                   \
  INPUT(kSlopes, alibi_slopes)                                                                                    \
  /* (H, 2R+1): adds entry R + clip(k_position - q_position, -R, R). */                                           \
  INPUT(kDistanceBias, distance_bias)                                                                             \
  /* Broadcastable to (B, H, Tq, Tk): added; -infinity, or the lowest finite number of its dtype, hides a key. */ \
  INPUT(kBias, bias)                                                                                              \
  /* (B, H, Tk) or (1, H, Tk): adds the sum of log_decay[t] for key < t <= query, over tokens t of the same */    \
  /* segment. Needs is_causal. Entries below -100000 count as -100000. */                                         \
  INPUT(kLogDecay, log_decay)                                                                                     \
  /* (H) or (B, H, Tq): a logit that takes part in the softmax and has no value. lse includes it. */              \
  INPUT(kSinks, sinks)                                                                                            \
  /* (H, 2Ry+1, 2Rx+1): adds entry [Ry + clip(dy, -Ry, Ry), Rx + clip(dx, -Rx, Rx)], where (dy, dx) is */         \
  /* k_position - q_position: positions are of two axes, see there. */                                            \
  INPUT(kGridBias, grid_bias)                                                                                     \
  /* (2Ry+1, D) or (H, 2Ry+1, D), and the same for x: adds grid_rel_scale * query . (grid_rel_y[Ry + clip(dy)] */ \
  /* + grid_rel_x[Rx + clip(dx)]). */                                                                             \
  INPUT(kGridRelY, grid_rel_y)                                                                                    \
  INPUT(kGridRelX, grid_rel_x)

#define POSENC_ATTENTION_TENSORS(TENSOR)                                                                             \
  /* (B, Tk) bool: true where a key may be attended. */                                                              \
  TENSOR(key_mask)                                                                                                   \
  /* bool, broadcastable to (B, H, Tq, Tk): true where a query may attend to a key. */                               \
  TENSOR(attn_mask)                                                                                                  \
  /* (B, Tk) integer: a query sees keys of its own segment only. The segments of queries are q_segment_ids, or */    \
  /* the last Tq entries, which needs Tq <= Tk. */                                                                   \
  TENSOR(segment_ids)                                                                                                \
  /* (B, Tq) integer: the segments of the queries. Needs segment_ids. */                                             \
  TENSOR(q_segment_ids)                                                                                              \
  /* (B, Tk) integer: tokens of the same block see each other, whatever is_causal and the windows say; entries */    \
  /* below 0 are in no block. Queries are the last Tq entries, which needs Tq <= Tk. */                              \
  TENSOR(block_ids)                                                                                                  \
  /* (Tq) or (B, Tq), (Tk) or (B, Tk), in tokens. Absent: 0 .. Tk-1 for keys, the last Tq of them for queries. */    \
  /* Integer, or floating where no score depends on the distance itself. */                                          \
  /* With grid_bias, grid_rel_y and grid_rel_x: (2, Tq) or (2, B, Tq), (2, Tk) or (2, B, Tk) integer, coordinates */ \
  /* (y, x). Those of keys must be given, queries have the last Tq of them unless given; all else goes by index. */  \
  TENSOR(q_positions)                                                                                                \
  TENSOR(k_positions)                                                                                                \
  /* int64, () or (B): the position of the first query; the others follow it. Instead of q_positions. */             \
  TENSOR(q_start)

#define POSENC_ATTENTION_OPTIONS(OPTION)                                                                             \
  /* Multiplies query . key. Absent: 1 / sqrt(D). */                                                                 \
  OPTION(std::optional<double>, scale, std::nullopt)                                                                 \
  /* Sees keys with q_position - k_position < window and, if not causal, k_position - q_position < window. */        \
  OPTION(std::optional<int64_t>, window, std::nullopt)                                                               \
  /* Instead of window: sees keys with q_position - k_position <= window_left and, if not causal, */                 \
  /* k_position - q_position <= window_right. Absent: any distance. */                                               \
  OPTION(std::optional<int64_t>, window_left, std::nullopt)                                                          \
  OPTION(std::optional<int64_t>, window_right, std::nullopt)                                                         \
  /* c > 0: scores become c tanh(score / c): those of softcap_on, "content" (scale * query . key, before any term */ \
  /* is added) or "sum" (after all terms, before masks). */                                                          \
  OPTION(std::optional<double>, softcap, std::nullopt)                                                               \
  OPTION(std::string, softcap_on, "content")                                                                         \
  /* CoPE: multiplies query . pos_emb by scale too (Meta's repository). false: the paper's listing. */               \
  OPTION(bool, scale_position_logits, false)                                                                         \
  /* Probability with which a weight is zeroed; the others are divided by 1 - dropout_p. The mask follows torch's */ \
  /* seed and is new in every call. */                                                                               \
  OPTION(double, dropout_p, 0.0)                                                                                     \
  /* Multiplies query . grid_rel_y and query . grid_rel_x. Absent: scale. */                                         \
  OPTION(std::optional<double>, grid_rel_scale, std::nullopt)

/// The tables of relative_attention(), cope_attention() and piecewise_attention(), which are keywords of attention().
#define POSENC_ATTENTION_TABLES(INPUT)                                                                       \
  /* (B, H, Tq, D) and (B, G, Tk, D): beyond `threshold` scores are scale * q_far . k_far. */                \
  INPUT(kFarQuery, q_far)                                                                                    \
  INPUT(kFarKey, k_far)                                                                                      \
  /* (2R+1, D) or (H, 2R+1, D): scores are scale * query . (key + rel_k[R + clip(k_pos - q_pos, -R, R)]). */ \
  INPUT(kRelK, rel_k)                                                                                        \
  /* (B, H, Tq, r): multiplied with rel_k, which is r wide then, in the place of query, and by scale. */     \
  INPUT(kRelQuery, rel_query)                                                                                \
  /* (2R+1, Dv) or (H, 2R+1, Dv): weights sum value + rel_v[the same entry]. */                              \
  INPUT(kRelV, rel_v)                                                                                        \
  /* (2R+1, D) or (H, 2R+1, D): adds scale * key . rel_q[R + clip(k_pos - q_pos, -R, R)]. */                 \
  INPUT(kRelQ, rel_q)                                                                                        \
  /* (1, D, P) or (H, D, P): CoPE's embeddings of positions. */                                              \
  INPUT(kPosEmb, pos_emb)

#define POSENC_ATTENTION_TABLE_OPTIONS(OPTION)                                           \
  /* In tokens: q_far and k_far serve keys with q_position - k_position >= threshold. */ \
  OPTION(int64_t, threshold, 0)
