#pragma once

/// Terms by positions on two axes, for kernel files only.
///
/// Keys have few coordinates along each axis. For each of them a tile of queries gets a row, once: of the tables, what
/// query . table adds there; of the bias, where its entries begin. What a key needs is one row for each axis. The rows'
/// gradients are summed likewise, and go to entries of the tables at the end.

#include "attention/terms/heads.h"
#include "attention/tile/term.h"

namespace posenc::attention_ops {
namespace {

/// Where the queries of a tile are along an axis, as entries of tables over clipped distances need it.
class GridQueries {
 public:
  GridQueries(const int64_t* coordinates, int64_t count) : coordinates_(coordinates), count_(count) {
    for (int64_t q = 0; q < count; ++q) {
      const int64_t offset = difference(coordinates[q], coordinates[0]);
      near_ = near_ && std::abs(offset) < kNear;
      offsets_[q] = static_cast<int32_t>(std::clamp(offset, -kNear, kNear));
    }
  }

  /// Calls body(q, radius + clip(coordinate - query, -radius, radius)) for each query.
  template <typename Body>
  void for_each_entry(int64_t coordinate, int64_t radius, const Body& body) const {
    if (near_ && radius < kNear) {
      // What lies further is clipped even so.
      const auto from_first =
          static_cast<int32_t>(std::clamp(difference(coordinate, coordinates_[0]), -2 * kNear, 2 * kNear));
      const auto most = static_cast<int32_t>(radius);
      for (int64_t q = 0; q < count_; ++q) {
        body(q, static_cast<int64_t>(std::clamp(from_first - offsets_[q], -most, most) + most));
      }
      return;
    }
    for (int64_t q = 0; q < count_; ++q) {
      body(q, clipped_entry(difference(coordinate, coordinates_[q]), radius));
    }
  }

 private:
  static constexpr int64_t kNear = int64_t{1} << 28;

  const int64_t* coordinates_;
  int64_t count_;
  /// From the first query; whether all are near it.
  int32_t offsets_[kTileQueries];
  bool near_ = true;
};

/// The rows of an axis, one for each coordinate that keys have, with a number for each query of a tile.
template <typename T>
class GridAxisRows {
 public:
  GridAxisRows() = default;
  GridAxisRows(const GridAxis<T>& axis, T* data) : axis_(&axis), data_(data) {}

  static int64_t size(const GridAxis<T>& axis) { return axis.room * kTileQueries; }

  /// The coordinates that keys begin .. end - 1 have, and what they need of the table.
  void reach(const Tile& t, int64_t begin, int64_t end) {
    if (begin >= end) {
      return;
    }
    used_ = range_of(axis_->place + begin, end - begin);
    const auto q = range_of(axis_->query + t.first_query, t.queries);
    const auto entry = [&](int64_t coordinate, int64_t query) {
      return clipped_entry(difference(coordinate, query), axis_->radius) - axis_->first;
    };
    entries_ = {entry(axis_->value[used_.smallest], q.largest), entry(axis_->value[used_.largest], q.smallest)};
  }

  /// Calls body(first, count) for the entries that are needed, few enough for a tile.
  template <typename Body>
  void for_each_part(const Body& body) const {
    for (int64_t first = entries_.smallest; first <= entries_.largest; first += kTileKeys) {
      body(first, std::min(kTileKeys, entries_.largest + 1 - first));
    }
  }

  const T* of_key(int64_t key) const { return data_ + axis_->place[key] * kTileQueries; }
  T* of_key(int64_t key) { return data_ + axis_->place[key] * kTileQueries; }

  void clear() { std::fill(row(used_.smallest), row(used_.largest + 1), T(0)); }

  /// Looks the rows up in products of the table's entries with queries.
  void fill(const Tile& t, const T* products) {
    for_each_entry(t, [&](int64_t q, int64_t entry, T& x) { x = products[entry * kTileQueries + q]; });
    for (int64_t i = used_.smallest; i <= used_.largest; ++i) {
      std::fill(row(i) + t.queries, row(i) + t.lanes, T(0));
    }
  }

  /// Adds the rows to sums for each of the table's entries.
  void add_to(const Tile& t, T* sums) {
    for_each_entry(t, [&](int64_t q, int64_t entry, const T& x) { sums[entry * kTileQueries + q] += x; });
  }

 private:
  T* row(int64_t i) { return data_ + i * kTileQueries; }

  /// Calls body(q, entry, number) for all rows in reach and queries of the tile.
  template <typename Body>
  void for_each_entry(const Tile& t, const Body& body) {
    const GridQueries queries(axis_->query + t.first_query, t.queries);
    for (int64_t i = used_.smallest; i <= used_.largest; ++i) {
      T* numbers = row(i);
      queries.for_each_entry(axis_->value[i], axis_->radius,
                             [&](int64_t q, int64_t entry) { body(q, entry - axis_->first, numbers[q]); });
    }
  }

  const GridAxis<T>* axis_ = nullptr;
  T* data_ = nullptr;
  Range<int32_t> used_{0, -1};
  Range<int64_t> entries_{0, -1};
};

/// Places in a head's bias: that of a key and a query is the sum of one by the key's coordinate on each axis.
template <typename T>
class GridBiasPlaces {
 public:
  using Place = at::vec::int_same_size_t<T>;
  static constexpr int64_t kLanes = Vec<T>::size(), kVectors = kTileQueries / kLanes;
  static_assert(sizeof(Place) == sizeof(T));

  GridBiasPlaces() = default;
  GridBiasPlaces(const GridAxis<T>& axis, T* data)
      : axis_(&axis), places_(reinterpret_cast<Place*>(data)), steps_(places_ + axis.room * kTileQueries) {}

  static int64_t size(const GridAxis<T>& axis) { return axis.room * (kTileQueries + kVectors); }

  /// For the coordinates that keys begin .. end - 1 have: entry * stride, the entries from the last to the first if
  /// `reversed`.
  void fill(const Tile& t, int64_t begin, int64_t end, int64_t stride, bool reversed) {
    const GridQueries queries(axis_->query + t.first_query, t.queries);
    const int64_t radius = axis_->bias_radius;
    const Range<int32_t> used = begin < end ? range_of(axis_->place + begin, end - begin) : Range<int32_t>{0, -1};
    for (int64_t i = used.smallest; i <= used.largest; ++i) {
      Place* to = places_ + i * kTileQueries;
      queries.for_each_entry(axis_->value[i], radius, [&](int64_t q, int64_t entry) {
        to[q] = static_cast<Place>((reversed ? 2 * radius - entry : entry) * stride);
      });
      std::fill(to + t.queries, to + t.lanes, Place(0));
      for (int64_t v = 0; v * kLanes < t.lanes; ++v) {
        steps_[i * kVectors + v] = step_of(to + v * kLanes);
      }
    }
  }

  const Place* of_key(int64_t key) const { return places_ + axis_->place[key] * kTileQueries; }
  /// What the places of a vector of queries differ by, from one to the next; kUneven where that varies.
  Place step(int64_t key, int64_t q) const { return steps_[axis_->place[key] * kVectors + q / kLanes]; }

 private:
  /// Far from any step.
  static constexpr Place kUneven = std::numeric_limits<Place>::min() / 2;

  static Place step_of(const Place* places) {
    const Place step = places[1] - places[0];
    for (int64_t i = 2; i < kLanes; ++i) {
      if (places[i] - places[i - 1] != step) {
        return kUneven;
      }
    }
    return step;
  }

  const GridAxis<T>* axis_ = nullptr;
  Place *places_ = nullptr, *steps_ = nullptr;
};

template <typename T>
class GridTile : public TileTerm<T> {
 public:
  static int64_t size(const GridHead<T>& head, const TileContext<T>& context) {
    int64_t size = 0;
    if (head.has_tables()) {
      const int64_t rows = GridAxisRows<T>::size(head.y) + GridAxisRows<T>::size(head.x);
      size += products_size(head) + rows * (context.backward ? 2 : 1) + own_query_size(head, context);
    }
    if (head.bias != nullptr) {
      size += GridBiasPlaces<T>::size(head.y) + GridBiasPlaces<T>::size(head.x);
    }
    return size;
  }

  GridTile(const GridHead<T>& head, const GridGradient<T>* grad, const TileContext<T>& context, T* at)
      : head_(head), grad_(grad), context_(context) {
    const auto take = [&](int64_t count) { return std::exchange(at, at + count); };
    if (head.has_tables()) {
      const auto rows = [&](const GridAxis<T>& axis) {
        return GridAxisRows<T>(axis, take(GridAxisRows<T>::size(axis)));
      };
      products_ = take(products_size(head));
      query_ = take(own_query_size(head, context));
      y_ = rows(head.y);
      x_ = rows(head.x);
      if (context.backward) {
        grad_y_ = rows(head.y);
        grad_x_ = rows(head.x);
      }
    }
    if (head.bias != nullptr) {
      places_y_ = GridBiasPlaces<T>(head.y, take(GridBiasPlaces<T>::size(head.y)));
      places_x_ = GridBiasPlaces<T>(head.x, take(GridBiasPlaces<T>::size(head.x)));
    }
  }

  void begin(const TileRows<T>& rows) {
    const Tile& t = rows.tile;
    if (head_.bias != nullptr) {
      places_y_.fill(t, rows.begin, rows.end, head_.bias_row(), /*reversed=*/false);
      places_x_.fill(t, rows.begin, rows.end, 1, /*reversed=*/true);
    }
    if (!head_.has_tables()) {
      return;
    }
    const T* query = rows.operands.query;
    if (!head_.is_score_scale) {
      pack_transposed(rows.query_rows, t, context_.width, static_cast<T>(head_.scale * kLog2E), query_);
      query = query_;
    }
    const auto fill = [&](const GridAxis<T>& axis, GridAxisRows<T>& numbers) {
      numbers.reach(t, rows.begin, rows.end);
      numbers.for_each_part([&](int64_t first, int64_t count) {
        score_product<T>(axis.table.from(first), query, count, t.lanes, context_.width, kNoDiagonal,
                         products_ + first * kTileQueries, nullptr);
      });
      numbers.fill(t, products_);
    };
    fill(head_.y, y_);
    fill(head_.x, x_);
    if (context_.backward) {
      for (GridAxisRows<T>* grad : {&grad_y_, &grad_x_}) {
        grad->reach(t, rows.begin, rows.end);
        grad->clear();
      }
    }
  }

  bool changes_scores() const { return true; }

  void add(Tile& t, const Operands<T>& /*operands*/, T* /*mask*/, T* scores) {
    const auto add_rows = [&](const auto& numbers) {
      for (int64_t k = 0; k < t.keys; ++k) {
        T* row = scores + k * kTileQueries;
        for (int64_t q = first_lane(t, k); q < t.lanes; q += kLanes) {
          (Vec<T>::loadu(row + q) + numbers(t.first_key + k, q)).store(row + q);
        }
      }
    };
    if (head_.has_tables()) {
      add_rows([&](int64_t key, int64_t q) {
        return Vec<T>::loadu(y_.of_key(key) + q) + Vec<T>::loadu(x_.of_key(key) + q);
      });
    }
    if (head_.bias != nullptr) {
      add_rows([&](int64_t key, int64_t q) { return bias_of(key, q); });
    }
  }

  void accumulate_gradients(const Tile& t, const T* /*mask*/, const T* grad) {
    if (head_.has_tables()) {
      // Keys that follow each other often share their row of y.
      for (int64_t begin = 0, end; begin < t.keys; begin = end) {
        T* of_y = grad_y_.of_key(t.first_key + begin);
        for (end = begin + 1; end < t.keys && grad_y_.of_key(t.first_key + end) == of_y; ++end) {
        }
        for_each_vector<T>(t, [&](int64_t q, const KeyRanges& keys) {
          sum_rows_of(t, q, begin, std::min(end, keys.some), grad, of_y + q);
        });
      }
    }
    for (int64_t k = 0; k < t.keys && grad_->bias != nullptr; ++k) {
      for (int64_t q = first_lane(t, k); q < t.lanes; q += kLanes) {
        sum_bias(t, k, q, grad + k * kTileQueries + q);
      }
    }
  }

  bool has_sums() const { return head_.has_tables(); }

  using TileTerm<T>::finish;
  void finish(const BackwardSums<T>& sums) {
    if (!head_.has_tables()) {
      return;
    }
    const Tile& t = sums.tile;
    const auto finish_axis = [&](const GridAxis<T>& axis, GridAxisRows<T>& numbers, const GradientRows<T>& to) {
      const auto of_part = [&](const auto& body) {
        numbers.for_each_part(
            [&](int64_t first, int64_t count) { body(first, count, products_ + first * kTileQueries); });
      };
      of_part([](int64_t, int64_t count, T* sum) { std::fill(sum, sum + count * kTileQueries, T(0)); });
      numbers.add_to(t, products_);
      of_part([&](int64_t first, int64_t count, T* sum) {
        scale_rows(sum, count * kTileQueries, head_.scale);
        add_to_table_and_queries(axis.table, first, count, t, sum, sums.query_rows, padded<T>(context_.width), to,
                                 sums.grad_query);
      });
    };
    finish_axis(head_.y, grad_y_, grad_->y);
    finish_axis(head_.x, grad_x_, grad_->x);
  }

 private:
  using Place = typename GridBiasPlaces<T>::Place;
  static constexpr int64_t kLanes = Vec<T>::size();

  static int64_t products_size(const GridHead<T>& head) {
    return std::max(head.y.entries, head.x.entries) * kTileQueries;
  }
  static int64_t own_query_size(const GridHead<T>& head, const TileContext<T>& context) {
    return head.is_score_scale ? 0 : context.width * kTileQueries;
  }

  /// Whether the entries of a key for queries q .. follow each other: those queries count up along x.
  bool is_run(int64_t key, int64_t q) const { return places_y_.step(key, q) + places_x_.step(key, q) == 1; }

  Vec<T> bias_of(int64_t key, int64_t q) const {
    const Place *y = places_y_.of_key(key) + q, *x = places_x_.of_key(key) + q;
    if (is_run(key, q)) {
      return Vec<T>::loadu(head_.bias + *y + *x);
    }
    using Places = at::vec::Vectorized<Place>;
    return at::vec::gather<sizeof(T)>(head_.bias, Places::loadu(y) + Places::loadu(x));
  }

  /// The first lane of the vectors of queries that see key k of a tile.
  static int64_t first_lane(const Tile& t, int64_t k) {
    return std::max<int64_t>(0, k + t.diagonal) / kGroup<T> * kGroup<T>;
  }

  /// Adds the gradients of a key and a vector of queries to the entries of the bias.
  void sum_bias(const Tile& t, int64_t k, int64_t q, const T* grad) {
    const int64_t key = t.first_key + k, lanes = std::min(kLanes, t.queries - q);
    const Place *y = places_y_.of_key(key) + q, *x = places_x_.of_key(key) + q;
    if (lanes == kLanes && is_run(key, q)) {
      double* to = grad_->bias + *y + *x;
      for (int64_t i = 0; i < kLanes; ++i) {
        to[i] += static_cast<double>(grad[i]);
      }
      return;
    }
    for (int64_t i = 0; i < lanes; ++i) {
      grad_->bias[y[i] + x[i]] += static_cast<double>(grad[i]);
    }
  }

  /// Adds those of keys begin .. end - 1, which share `of_y`, and a vector of queries to the rows of both axes.
  void sum_rows_of(const Tile& t, int64_t q, int64_t begin, int64_t end, const T* grad, T* of_y) {
    Vec<T> sum = Vec<T>::loadu(of_y);
    for (int64_t k = begin; k < end; ++k) {
      const Vec<T> g = Vec<T>::loadu(grad + k * kTileQueries + q);
      T* of_x = grad_x_.of_key(t.first_key + k) + q;
      sum = sum + g;
      (Vec<T>::loadu(of_x) + g).store(of_x);
    }
    sum.store(of_y);
  }

  const GridHead<T>& head_;
  const GridGradient<T>* grad_;
  TileContext<T> context_;
  /// Of an axis' entries with the queries, and of gradients; the queries times the tables' own scale.
  T *products_ = nullptr, *query_ = nullptr;
  GridAxisRows<T> y_, x_, grad_y_, grad_x_;
  GridBiasPlaces<T> places_y_, places_x_;
};

template <typename T>
class GridDecode : public DecodeTerm<T> {
 public:
  static int64_t size(const Heads<T>& heads, const DecodeContext<T>& context) {
    const auto& head = std::get<GridHead<T>>(heads);
    return head.has_tables() ? context.rows() * (whole_steps<T>(context.width) + room(head.y) + room(head.x)) : 0;
  }

  GridDecode(const Heads<T>* heads, const DecodeRows<T>& rows, const DecodeContext<T>& context, T* at)
      : heads_(heads), rows_(std::get<GridRows<T>>(rows).query), context_(context) {
    query_ = at;
    y_ = query_ + context.rows() * whole_steps<T>(context.width);
    x_ = y_ + context.rows() * room(head(0).y);
  }

  bool used() const { return head(0).used(); }

  template <typename Product>
  void begin(int64_t begin, int64_t end, const Product& /*product*/) {
    if (!head(0).has_tables() || begin == end) {
      return;
    }
    arrange_rows(rows_, context_.rows(), context_.width, query_);
    for (int64_t h = 0; h < context_.heads; ++h) {
      const auto multiply = [&](const GridAxis<T>& axis, T* to) {
        multiply_table(axis.table, 0, axis.entries, query_ + h * context_.queries * whole_steps<T>(context_.width),
                       context_.queries, context_.width, to + h * context_.queries * room(axis), room(axis));
      };
      multiply(head(h).y, y_);
      multiply(head(h).x, x_);
    }
  }

  void add(DecodeRow<T>& row) {
    const GridHead<T>& head = this->head(row.row / context_.queries);
    const int64_t *y = head.y.key + row.block.first_key, *x = head.x.key + row.block.first_key;
    const int64_t at_y = head.y.query[row.query], at_x = head.x.query[row.query];
    if (head.has_tables()) {
      const T *of_y = y_ + row.row * room(head.y), *of_x = x_ + row.row * room(head.x);
      for (int64_t k = 0; k < row.block.keys; ++k) {
        row.scores[k] += of_y[clipped_entry(difference(y[k], at_y), head.y.radius) - head.y.first] +
                         of_x[clipped_entry(difference(x[k], at_x), head.x.radius) - head.x.first];
      }
    }
    if (head.bias != nullptr) {
      for (int64_t k = 0; k < row.block.keys; ++k) {
        const T* of_row = head.bias + clipped_entry(difference(y[k], at_y), head.y.bias_radius) * head.bias_row();
        row.scores[k] += of_row[clipped_entry(difference(at_x, x[k]), head.x.bias_radius)];
      }
    }
  }

 private:
  static int64_t room(const GridAxis<T>& axis) { return padded<T>(axis.entries); }
  const GridHead<T>& head(int64_t h) const { return std::get<GridHead<T>>(heads_[h]); }

  const Heads<T>* heads_;
  PackedRows<T> rows_;
  DecodeContext<T> context_;
  /// The queries, and their products with the entries of each table.
  T *query_, *y_, *x_;
};

}  // namespace
}  // namespace posenc::attention_ops
