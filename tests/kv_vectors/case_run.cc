#include "tests/kv_vectors/case_run.h"

#include <cmath>
#include <cstdio>

#include "models/json_file.h"

namespace tramontane::kv_vectors {

using nlohmann::json;

namespace {

const json& PartOf(const json& body, const char* key) {
  static const json kNothing = json::object();
  const auto found = body.find(key);
  return found == body.end() || !found->is_object() ? kNothing : *found;
}

Status WrongSize(const std::string& field, int64_t got, int64_t wanted) {
  return InvalidArgument("has " + std::to_string(got) + " elements, expected " + std::to_string(wanted))
      .WithField(field, FieldForm::kSubject);
}

// The first place where two values of plain JSON differ.
Status CompareJson(const std::string& path, const json& want, const json& got) {
  if (want.is_array() && got.is_array() && want.size() == got.size()) {
    for (size_t i = 0; i < want.size(); ++i) {
      TM_RETURN_IF_ERROR(CompareJson(FieldElement(path, i), want[i], got[i]));
    }
    return Status::Ok();
  }
  if (want.is_object() && got.is_object()) {
    for (const auto& [key, value] : want.items()) {
      if (!got.contains(key)) {
        return InvalidArgument("is not computed").WithField(FieldPath(path, key), FieldForm::kSubject);
      }
      TM_RETURN_IF_ERROR(CompareJson(FieldPath(path, key), value, got[key]));
    }
    for (const auto& [key, value] : got.items()) {
      if (!want.contains(key)) {
        return InvalidArgument("is not in the file").WithField(FieldPath(path, key), FieldForm::kSubject);
      }
    }
    return Status::Ok();
  }
  if (want == got) return Status::Ok();
  return InvalidArgument("is " + JsonText(got) + ", expected " + JsonText(want))
      .WithField(path, FieldForm::kSubject);
}

}  // namespace

std::string NumberText(double number) {
  char text[40];
  std::snprintf(text, sizeof(text), "%.9g", number);
  return text;
}

Status Compare(const std::string& field, const VectorTensor& want, const std::vector<double>& got,
               Tolerance tolerance) {
  if (std::ssize(got) != want.size()) return WrongSize(field, std::ssize(got), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const double wanted = want.values[i];
    const double most = tolerance.t * (1 + std::abs(wanted));
    const bool agree =
        got[i] == wanted || (std::isnan(got[i]) && std::isnan(wanted)) ||
        (std::isfinite(got[i]) && std::isfinite(wanted) && most > 0 && std::abs(got[i] - wanted) <= most);
    if (agree) continue;
    return InvalidArgument("is " + NumberText(got[i]) + ", expected " + NumberText(wanted) +
                           (most > 0 ? " within " + NumberText(most) : ""))
        .WithField(field + IndexText(want.shape, static_cast<int64_t>(i)), FieldForm::kSubject);
  }
  return Status::Ok();
}

CaseRun::CaseRun(const VectorCase& vector_case, Machine& machine)
    : body_(vector_case.body),
      out_(PartOf(body_, "out")),
      machine_(machine),
      reader_(PartOf(body_, "attrs"), PartOf(body_, "in")) {}

StatusOr<VectorTensor> CaseRun::Wanted(const std::string& name) const {
  const std::string field = FieldPath("out", name);
  if (!Expects(name)) return InvalidArgument("is missing").WithField(field, FieldForm::kSubject);
  StatusOr<VectorTensor> want = ReadTensor(out_[name]);
  if (!want.ok()) return Status(want.status()).InField(field);
  return want;
}

Status CaseRun::ExpectSize(const std::string& name, int64_t size) const {
  TM_ASSIGN_OR_RETURN(const VectorTensor want, Wanted(name));
  return want.size() == size ? Status::Ok() : WrongSize(FieldPath("out", name), size, want.size());
}

Status CaseRun::Expect(const std::string& name, const std::vector<double>& got) {
  TM_ASSIGN_OR_RETURN(const VectorTensor want, Wanted(name));
  Tolerance tolerance;
  if (body_.contains("tol")) {
    const char* which = machine_.exact() ? "f32" : "bf16";
    const json& tol = body_["tol"];
    if (!tol.is_object() || !tol.contains(which) || !tol[which].is_number() || tol[which] < 0) {
      return InvalidArgument("is no number from 0").WithField(FieldPath("tol", which), FieldForm::kSubject);
    }
    tolerance.t = tol[which].get<double>();
  }
  compared_.insert(name);
  return Compare(FieldPath("out", name), want, got, tolerance);
}

Status CaseRun::ExpectJson(const std::string& name, const json& got) {
  const std::string field = FieldPath("out", name);
  if (!Expects(name)) return InvalidArgument("is missing").WithField(field, FieldForm::kSubject);
  compared_.insert(name);
  return CompareJson(field, out_[name], got);
}

Status CaseRun::EverythingWasCompared() const {
  for (const auto& [name, value] : out_.items()) {
    if (compared_.count(name) == 0) {
      return InvalidArgument("is no output of this kind")
          .WithField(FieldPath("out", name), FieldForm::kSubject);
    }
  }
  return Status::Ok();
}

}  // namespace tramontane::kv_vectors
