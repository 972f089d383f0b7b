// Activations, vectorised: accurate to a few units in the last place, and the
// same bits for a value whichever lane it is in.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "experts/kernels/activate.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include <cstdint>
#include <limits>

#include "experts/base/check.h"
#include "experts/base/expert_spec.h"
#include "experts/kernels/fill.h"
#include "experts/kernels/kernels.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace moe {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DA = hn::CappedTag<float, kPanelWidth>;
using VA = hn::Vec<DA>;

// exp(x) that reaches infinity and passes NaN on.
HWY_INLINE VA ExpAll(VA x) {
  const DA d;
  const VA limit = hn::Set(d, 88.72F);
  const VA y = hn::Exp(d, hn::Min(x, limit));
  const VA inf = hn::Set(d, std::numeric_limits<float>::infinity());
  return hn::IfThenElse(hn::Eq(x, x), hn::IfThenElse(hn::Gt(x, limit), inf, y),
                        x);
}

// z / (1 + exp(-u)): z times the logistic function of u.
HWY_INLINE VA TimesLogistic(VA z, VA u) {
  return hn::Div(z, hn::Add(hn::Set(DA(), 1.0F), ExpAll(hn::Neg(u))));
}

template <int size>
HWY_INLINE VA Polynomial(VA x, const float (&coefficients)[size]) {
  VA sum = hn::Set(DA(), coefficients[0]);
  for (int i = 1; i < size; ++i) {
    sum = hn::MulAdd(sum, x, hn::Set(DA(), coefficients[i]));
  }
  return sum;
}

// z/2 erfc(-z / sqrt 2), without the cancellation of 1 + erf for negative z.
HWY_INLINE VA Gelu(VA z) {
  const DA d;
  // Chebyshev fits: erf(x) / x in x^2 on [0, 1], and exp(x^2) erfc(x) in
  // 1 / (1 + x/2) on [1, 10.3]; beyond, erfc is 0 in float.
  constexpr float kErf[] = {-9.66704457149e-6F, 1.12659590256e-4F,
                            -8.48408040554e-4F, 5.22103180786e-3F,
                            -2.68654307277e-2F, 0.112837824952F,
                            -0.37612638468F,    1.12837916706F};
  constexpr float kErfc[] = {
      -0.0706773736823F, 0.338274092573F,  -0.591621988006F, 0.390165085016F,
      -0.0997479786737F, 0.232675833891F,  0.235392036966F,  0.283571137462F,
      0.281985176993F,   3.55951702622e-6F};
  const VA one = hn::Set(d, 1.0F);
  const VA half = hn::Set(d, 0.5F);
  const VA magnitude = hn::Min(hn::Abs(z), hn::Set(d, 14.56F));
  const VA x = hn::Mul(magnitude, hn::Set(d, 0.707106781187F));
  // x^2, and its rounding error, which exp would magnify.
  const VA halved = hn::Mul(magnitude, half);
  const VA square = hn::Mul(magnitude, halved);
  const VA rest = hn::MulSub(magnitude, halved, square);
  const VA near_erf = hn::Mul(x, Polynomial(square, kErf));
  const VA exponential = hn::Exp(d, hn::Neg(square));
  const VA corrected = hn::NegMulAdd(exponential, rest, exponential);
  const VA far_erfc = hn::Mul(
      corrected, Polynomial(hn::Div(one, hn::MulAdd(x, half, one)), kErfc));
  const auto near = hn::Lt(x, one);
  const VA erfc = hn::IfThenElse(near, hn::Sub(one, near_erf), far_erfc);
  const VA erf = hn::IfThenElse(near, near_erf, hn::Sub(one, far_erfc));
  // erfc(-|x|) = 1 + erf(|x|).
  const VA factor =
      hn::IfThenElse(hn::Lt(z, hn::Zero(d)), erfc, hn::Add(one, erf));
  const VA value = hn::Mul(hn::Mul(z, half), factor);
  return hn::IfThenElse(hn::Eq(z, z), value, z);
}

template <Activation activation>
HWY_INLINE VA Apply(VA z, VA beta) {
  const DA d;
  const VA zero = hn::Zero(d);
  switch (activation) {
    case Activation::kIdentity:
      return z;
    case Activation::kRelu:
      return hn::IfThenElse(hn::Lt(z, zero), zero, z);
    case Activation::kRelu2: {
      const VA positive = hn::IfThenElse(hn::Lt(z, zero), zero, z);
      return hn::Mul(positive, positive);
    }
    case Activation::kGelu:
      return Gelu(z);
    case Activation::kGeluTanh: {
      // (1 + tanh u) / 2 = logistic(2u).
      const VA cube = hn::Mul(hn::Mul(z, z), z);
      const VA inner = hn::MulAdd(cube, hn::Set(d, 0.044715F), z);
      return TimesLogistic(z, hn::Mul(inner, hn::Set(d, 1.59576912161F)));
    }
    case Activation::kSilu:
      return TimesLogistic(z, hn::Mul(beta, z));
    case Activation::kSigmoid:
      return TimesLogistic(hn::Set(d, 1.0F), z);
  }
  return z;
}

template <Activation activation>
void ActivateAll(const ActivationSpec& spec, bool gated, int64_t outputs,
                 int64_t rows, float* z) {
  const DA d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const VA beta = hn::Set(d, spec.beta);
  const int64_t panel = rows * kPanelWidth;
  if (!gated) {
    for (int64_t i = 0; i < outputs * panel; i += lanes) {
      hn::StoreU(Apply<activation>(hn::LoadU(d, z + i), beta), d, z + i);
    }
    return;
  }
  // Comparisons, not Min and Max, so that NaN stays.
  const VA limit = hn::Set(d, spec.limit);
  const VA lowest = hn::Neg(limit);
  const VA offset = hn::Set(d, spec.up_offset);
  for (int64_t pair = 0; pair < outputs; ++pair) {
    const float* gates = z + 2 * pair * panel;
    const float* ups = gates + panel;
    float* out = z + pair * panel;
    for (int64_t i = 0; i < panel; i += lanes) {
      VA gate = hn::LoadU(d, gates + i);
      VA up = hn::LoadU(d, ups + i);
      gate = hn::IfThenElse(hn::Gt(gate, limit), limit, gate);
      up = hn::IfThenElse(hn::Gt(up, limit), limit, up);
      up = hn::IfThenElse(hn::Lt(up, lowest), lowest, up);
      const VA act = Apply<activation>(gate, beta);
      hn::StoreU(hn::Mul(act, hn::Add(up, offset)), d, out + i);
    }
  }
}

void Activate(const ActivationSpec& spec, bool gated, int64_t outputs,
              int64_t rows, float* z) {
  switch (spec.activation) {
    case Activation::kIdentity:
      return ActivateAll<Activation::kIdentity>(spec, gated, outputs, rows, z);
    case Activation::kRelu:
      return ActivateAll<Activation::kRelu>(spec, gated, outputs, rows, z);
    case Activation::kRelu2:
      return ActivateAll<Activation::kRelu2>(spec, gated, outputs, rows, z);
    case Activation::kGelu:
      return ActivateAll<Activation::kGelu>(spec, gated, outputs, rows, z);
    case Activation::kGeluTanh:
      return ActivateAll<Activation::kGeluTanh>(spec, gated, outputs, rows, z);
    case Activation::kSilu:
      return ActivateAll<Activation::kSilu>(spec, gated, outputs, rows, z);
    case Activation::kSigmoid:
      return ActivateAll<Activation::kSigmoid>(spec, gated, outputs, rows, z);
  }
}

void FillActivateOfTarget(Kernels& kernels) { kernels.activate = &Activate; }

}  // namespace HWY_NAMESPACE
}  // namespace moe
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moe {

HWY_EXPORT(FillActivateOfTarget);
void FillActivate(Kernels& kernels) {
  HWY_DYNAMIC_DISPATCH(FillActivateOfTarget)(kernels);
}

}  // namespace moe
#endif
