#include "tests/reference/linear.h"

#include <cmath>

namespace tramontane::reference {

Matrix RmsNorm(const Matrix& x, const std::vector<double>& weight, double epsilon) {
  Matrix out(x.rows, x.columns);
  for (int64_t row = 0; row < x.rows; ++row) {
    double squares = 0.0;
    for (int64_t k = 0; k < x.columns; ++k) squares += x.At(row, k) * x.At(row, k);
    const double norm = std::sqrt(squares / static_cast<double>(x.columns) + epsilon);
    for (int64_t k = 0; k < x.columns; ++k) {
      out.At(row, k) = x.At(row, k) / norm * weight[static_cast<size_t>(k)];
    }
  }
  return out;
}

Matrix MultiplyTransposed(const Matrix& x, const Matrix& w) {
  Matrix out(x.rows, w.rows);
  for (int64_t row = 0; row < x.rows; ++row) {
    for (int64_t column = 0; column < w.rows; ++column) {
      double sum = 0.0;
      for (int64_t k = 0; k < x.columns; ++k) sum += x.At(row, k) * w.At(column, k);
      out.At(row, column) = sum;
    }
  }
  return out;
}

Matrix Magnitude(const Matrix& x, const Matrix& w) {
  Matrix positive_x = x;
  Matrix positive_w = w;
  for (double& value : positive_x.data) value = std::abs(value);
  for (double& value : positive_w.data) value = std::abs(value);
  return MultiplyTransposed(positive_x, positive_w);
}

double Silu(double x) { return x / (1.0 + std::exp(-x)); }

}  // namespace tramontane::reference
