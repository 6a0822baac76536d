// RMSNorm, a matrix product and SwiGLU by their definitions, in double precision. Any thread; pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tramontane::reference {

struct Matrix {
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<double> data;  // [rows, columns]

  Matrix(int64_t matrix_rows, int64_t matrix_columns)
      : rows(matrix_rows), columns(matrix_columns), data(static_cast<size_t>(rows * columns)) {}
  double& At(int64_t row, int64_t column) { return data[static_cast<size_t>(row * columns + column)]; }
  double At(int64_t row, int64_t column) const { return data[static_cast<size_t>(row * columns + column)]; }
};

// Each row divided by sqrt(mean of its squares + epsilon), times weight.
Matrix RmsNorm(const Matrix& x, const std::vector<double>& weight, double epsilon);

// x W^T, with W [out features, in features].
Matrix MultiplyTransposed(const Matrix& x, const Matrix& w);

// The same over absolute values: what rounding errors of the product are in proportion to.
Matrix Magnitude(const Matrix& x, const Matrix& w);

double Silu(double x);  // x / (1 + e^-x)

}  // namespace tramontane::reference
