#include "experts/matmul_onednn.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "experts/base/check.h"
#include "oneapi/dnnl/dnnl.hpp"

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

// The library's C++ interface throws; nothing leaves this file.
template <typename Fn>
dnnl_status_t StatusOf(const Fn& fn) {
  try {
    fn();
    return dnnl_success;
  } catch (const dnnl::error& error) {
    return error.status;
  }
}

// A product that oneDNN 2 makes of an operation's description, and oneDNN 3
// without one. A template so that only what there is gets compiled.
template <typename Matmul>
Matmul MakeMatmul(const dnnl::engine& engine, const dnnl::memory::desc& a,
                  const dnnl::memory::desc& b, const dnnl::memory::desc& out) {
  using Description = typename Matmul::primitive_desc;
  if constexpr (requires { typename Matmul::desc; }) {
    return Matmul(Description(typename Matmul::desc(a, b, out), engine));
  } else {
    return Matmul(Description(engine, a, b, out));
  }
}

// Throws dnnl::error. The library keeps the code that it generates for a shape:
// making the product anew costs microseconds.
void MultiplyBF16(MatrixView<const uint16_t> a, MatrixView<const uint16_t> b,
                  Matrix out) {
  using dnnl::memory;
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  const memory::desc a_desc({a.rows(), a.cols()}, memory::data_type::bf16,
                            memory::dims{a.stride(), 1});
  const memory::desc b_desc({b.cols(), b.rows()}, memory::data_type::bf16,
                            memory::dims{1, b.stride()});
  const memory::desc out_desc({out.rows(), out.cols()}, memory::data_type::f32,
                              memory::dims{out.stride(), 1});
  // Memory of the library is never const.
  const auto view = [&engine](const memory::desc& desc, const void* data) {
    return memory(desc, engine, const_cast<void*>(data));
  };
  dnnl::stream stream(engine);
  MakeMatmul<dnnl::matmul>(engine, a_desc, b_desc, out_desc)
      .execute(stream, {{DNNL_ARG_SRC, view(a_desc, a.data())},
                        {DNNL_ARG_WEIGHTS, view(b_desc, b.data())},
                        {DNNL_ARG_DST, view(out_desc, out.data())}});
  stream.wait();
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

void MatmulTransposed(MatrixView<const uint16_t> a,
                      MatrixView<const uint16_t> b, Matrix out) {
  MOE_DCHECK(a.cols() == b.cols());
  MOE_DCHECK(out.rows() == a.rows() && out.cols() == b.rows());
  if (out.rows() == 0 || out.cols() == 0) return;
  UseCallingThreadAlone();
  MOE_CHECK(StatusOf([&] { MultiplyBF16(a, b, out); }) == dnnl_success);
}

bool OneDnnMultipliesBF16() {
  UseCallingThreadAlone();
  const uint16_t one = 0x3f80;
  float product = 0;
  const MatrixView<const uint16_t> factor(&one, 1, 1);
  return StatusOf([&] {
           MultiplyBF16(factor, factor, Matrix(&product, 1, 1));
         }) == dnnl_success;
}

std::string OneDnnVersion() {
  const dnnl_version_t* version = dnnl_version();
  return absl::StrCat(version->major, ".", version->minor, ".", version->patch);
}

}  // namespace moe
