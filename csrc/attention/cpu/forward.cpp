/// Jobs of the forward kernel: tiles of queries, shared by all threads.

#include "attention/cpu/jobs.h"
#include "attention/cpu/ops.h"

#include <ATen/Parallel.h>

#include <algorithm>

namespace posenc::attention_ops {

template <typename T>
void run_forward(const Call& c, int64_t seed, const Tensor& out, const Residuals& r) {
  const Sizes n(c);
  const PreparedCall<T> call(c);
  const int64_t items = n.batch * n.heads * n.tiles;
  const int64_t grain = n.products() < kSerialProducts ? items : 1;
  const int64_t size = KernelsOf<T>::forward_workspace(call.workspace_spec());
  at::parallel_for(0, items, grain, [&](int64_t begin, int64_t end) {
    T* workspace = thread_memory().workspace.get<T>(size);
    ThreadRows<T> rows(c, n.heads_per_group * n.tiles > 1);
    for (int64_t item = begin; item < end; ++item) {
      const int64_t b = item / (n.heads * n.tiles), h = item / n.tiles % n.heads;
      const JobPlace place{b, h, h / n.heads_per_group, mixed_tile(item % n.tiles, n.tiles) * kTileQueries};
      ForwardJob<T> job{};
      describe(job, c, n, call, rows, r, seed, place);
      job.out = mutable_rows_of(out, b, h, job.first_query);
      job.lse = r.lse.mutable_data_ptr<T>() + (b * n.heads + h) * n.queries;
      KernelsOf<T>::forward(job, workspace);
    }
  });
}

template void run_forward<float>(const Call&, int64_t, const Tensor&, const Residuals&);
template void run_forward<double>(const Call&, int64_t, const Tensor&, const Residuals&);

}  // namespace posenc::attention_ops
