#include "experts/matmul_onednn.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "experts/base/check.h"
#include "oneapi/dnnl/dnnl.h"

// oneDNN as Debian builds it runs on OpenMP; a team per calling thread would
// oversubscribe the cores. The setting is per thread. Declared here because
// omp.h comes with the compiler, and not with every compiler.
extern "C" void omp_set_num_threads(int num_threads);

namespace moe {
namespace {

void UseCallingThreadAlone() {
  thread_local const bool done = [] {
    omp_set_num_threads(1);
    return true;
  }();
  static_cast<void>(done);
}

}  // namespace

void MatmulTransposed(ConstMatrix a, ConstMatrix b, Matrix out) {
  MOE_DCHECK(a.cols() == b.cols());
  MOE_DCHECK(out.rows() == a.rows() && out.cols() == b.rows());
  if (out.rows() == 0 || out.cols() == 0) return;
  UseCallingThreadAlone();
  const dnnl_status_t status =
      dnnl_sgemm('N', 'T', a.rows(), b.rows(), a.cols(), /*alpha=*/1.0F,
                 a.data(), a.stride(), b.data(), b.stride(), /*beta=*/0.0F,
                 out.data(), out.stride());
  MOE_CHECK(status == dnnl_success);
}

std::string OneDnnVersion() {
  const dnnl_version_t* version = dnnl_version();
  return absl::StrCat(version->major, ".", version->minor, ".", version->patch);
}

}  // namespace moe
