/// Jobs of the backward kernel, and the sums of what several of them add to.

#include "attention/cpu/jobs.h"
#include "attention/cpu/ops.h"

#include <ATen/Parallel.h>

#include <algorithm>

namespace posenc::attention_ops {

/// Jobs of one batch row and group of heads add to the same keys: they are one item of work, or with few of these and
/// many threads a fixed number of parts with sums of their own.
template <typename T>
Gradients run_backward(const BackwardArgs& b, const Call& c) {
  const Sizes n(c);
  const PreparedCall<T> call(c);
  const Wanted& wanted = b.wanted;
  // A bias that rows share takes the gradients of several.
  const bool serial =
      n.products() < kSerialProducts || (wanted[kBias] && c[kBias].numel() < n.batch * n.heads * n.queries * n.keys);
  const int64_t groups = n.batch * n.groups, jobs = n.heads_per_group * n.tiles;
  const int64_t parts =
      serial || groups >= at::get_num_threads() ? 1 : std::min(jobs, ceil_div(at::get_num_threads(), groups));
  const int64_t items = groups * parts, workers = serial ? 1 : std::min<int64_t>(at::get_num_threads(), items);
  const GradientLayout layout{n.batch, n.heads, n.queries, n.keys, parts, workers};

  Gradients results;
  std::optional<KeyGradients<T>> grad_key, grad_value;
  if (wanted[kKey]) {
    grad_key.emplace(c.key(), parts);
  }
  if (wanted[kValue]) {
    grad_value.emplace(c.value(), parts);
  }
  if (wanted[kQuery]) {
    results[kQuery] = at::empty_like(c.query());
  }
  const CpuTermGradients<T> of_terms(c, call.terms(), layout, wanted);
  Residuals saved = b.saved;
  for (Tensor* x : {&saved.lse, &saved.largest, &saved.total, &saved.counts}) {
    *x = x->contiguous();
  }
  const Tensor grad_lse = b.grad_lse ? b.grad_lse->contiguous() : Tensor();
  const int64_t seed = saved.seed.item<int64_t>();
  const int64_t size = KernelsOf<T>::backward_workspace(call.workspace_spec());

  const auto work = [&](int64_t worker) {
    T* workspace = thread_memory().workspace.get<T>(size);
    ThreadRows<T> rows(c, jobs > 1);
    for (int64_t item = items * worker / workers; item < items * (worker + 1) / workers; ++item) {
      const int64_t batch = item / (n.groups * parts), g = item / parts % n.groups, part = item % parts;
      for (int64_t i = part; i < jobs; i += parts) {
        const int64_t h = g * n.heads_per_group + i / n.tiles, row = (batch * n.heads + h) * n.queries;
        GradientPlace place{{batch, h, g, i % n.tiles * kTileQueries}, part, worker};
        BackwardJob<T> job{};
        describe(job, c, n, call, rows, saved, seed, place);
        job.out = rows_of(saved.out, batch, h, job.first_query);
        job.grad_out = rows_of(b.grad_out, batch, h, job.first_query);
        job.lse = saved.lse.const_data_ptr<T>() + row;
        job.grad_lse = grad_lse.defined() ? grad_lse.const_data_ptr<T>() + row : nullptr;
        job.grad_key = grad_key ? grad_key->rows(place) : GradientRows<T>{};
        job.grad_value = grad_value ? grad_value->rows(place) : GradientRows<T>{};
        job.grad_query = wanted[kQuery] ? mutable_rows_of(results[kQuery], batch, h, job.first_query) : MutableRows{};
        job.gradients = of_terms.at(place);
        KernelsOf<T>::backward(job, workspace);
        if (i + parts >= jobs || (i + parts) / n.tiles != i / n.tiles) {
          of_terms.end_head(place, job.grad_key);
        }
      }
    }
  };
  at::parallel_for(0, workers, 1, [&](int64_t begin, int64_t end) {
    for (int64_t worker = begin; worker < end; ++worker) {
      work(worker);
    }
  });

  if (grad_key) {
    results[kKey] = grad_key->result();
  }
  if (grad_value) {
    results[kValue] = grad_value->result();
  }
  of_terms.results(results);
  return results;
}

template Gradients run_backward<float>(const BackwardArgs&, const Call&);
template Gradients run_backward<double>(const BackwardArgs&, const Call&);

}  // namespace posenc::attention_ops
