module kvasir/e2e/kind/pause

go 1.24.0
