{{- /* A value of `env` as text. Helm reads 1000000 as a floating-point number, 1e+06. */}}
{{- define "kvasir.text" }}
{{- if and (kindIs "float64" .) (eq . (floor .)) }}{{ printf "%.0f" . }}{{ else }}{{ . }}{{ end }}
{{- end }}

{{- /* Change the operator's Deployment by the values: (list $ $deployment) */}}
{{- define "kvasir.configure" }}
{{- $root := index . 0 }}
{{- $deployment := index . 1 }}
{{- $values := $root.Values }}
{{- $template := $deployment.spec.template }}
{{- $pod := $template.spec }}
{{- $container := first $pod.containers }}
{{- $_ := set $deployment.spec "replicas" $values.replicas }}
{{- $_ := set $pod "serviceAccountName" (print $pod.serviceAccountName (include "kvasir.suffix" $root)) }}
{{- $_ := set $container "image" (include "kvasir.image" (list $root "operator")) }}
{{- $_ := set $container "imagePullPolicy" $values.images.pullPolicy }}
{{- with $values.resources }}{{ $_ := set $container "resources" . }}{{ end }}
{{- range $field := list "nodeSelector" "tolerations" "affinity" "priorityClassName" }}
{{- with index $values $field }}{{ $_ := set $pod $field . }}{{ end }}
{{- end }}
{{- if $values.pullSecrets.operator }}
{{- $secrets := list }}
{{- range $values.pullSecrets.operator }}{{ $secrets = append $secrets (dict "name" .) }}{{ end }}
{{- $_ := set $pod "imagePullSecrets" $secrets }}
{{- end }}
{{- $_ := set $template.metadata "labels" (merge (dict) $template.metadata.labels $values.podLabels) }}
{{- $_ := set $template.metadata "annotations" (merge (dict) $template.metadata.annotations $values.podAnnotations) }}
{{- $env := dict
      "KVASIR_FRONTEND_IMAGE" (include "kvasir.image" (list $root "frontend"))
      "KVASIR_ENGINE_IMAGE" (include "kvasir.image" (list $root "engine"))
      "KVASIR_OPERATOR_CLASS" $values.operatorClass }}
{{- with $values.watchNamespaces }}{{ $_ := set $env "KVASIR_NAMESPACES" (join "," .) }}{{ end }}
{{- with $values.pullSecrets.services }}{{ $_ := set $env "KVASIR_IMAGE_PULL_SECRETS" (join "," .) }}{{ end }}
{{- with $values.monitoring.namespaces }}{{ $_ := set $env "KVASIR_MONITORING_NAMESPACES" (join "," .) }}{{ end }}
{{- $env = merge (dict) $values.env $env }}
{{- range $container.env }}
{{- if hasKey $env .name }}
{{- $_ := set . "value" (include "kvasir.text" (index $env .name)) }}
{{- $_ := unset . "valueFrom" }}
{{- $_ := unset $env .name }}
{{- end }}
{{- end }}
{{- range $name, $value := $env }}
{{- $_ := set $container "env" (append $container.env (dict "name" $name "value" (include "kvasir.text" $value))) }}
{{- end }}
{{- end }}
