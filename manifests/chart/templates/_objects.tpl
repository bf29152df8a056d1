{{- /* Suffix of the names of this installation's objects. */}}
{{- define "kvasir.suffix" }}{{ with .Values.operatorClass }}-{{ . }}{{ end }}{{ end }}

{{- /* Name of an image: (list $ "frontend") */}}
{{- define "kvasir.image" }}
{{- $images := (index . 0).Values.images }}
{{- $image := index $images (index . 1) }}
{{- with $images.registry }}{{ trimSuffix "/" . }}/{{ end }}{{ $image.name }}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ default (index . 0).Chart.AppVersion $images.tag }}{{ end }}
{{- end }}

{{- /* The objects of a folder's kustomization, as JSON {items: […]}, with its labels: (list $ "operator") */}}
{{- define "kvasir.objects" }}
{{- $root := index . 0 }}
{{- $folder := index . 1 }}
{{- $kustomization := $root.Files.Get (printf "%s/kustomization.yaml" $folder) | fromYaml }}
{{- $items := list }}
{{- range $file := $kustomization.resources }}
{{- $text := $root.Files.Get (printf "%s/%s" $folder $file) | replace "kvasir-system" $root.Release.Namespace }}
{{- range splitList "\n---\n" $text }}
{{- $object := fromYaml . }}
{{- $metadata := $object.metadata }}
{{- range $set := $kustomization.labels }}
{{- $_ := set $metadata "labels" (merge (dict) $set.pairs ($metadata.labels | default dict)) }}
{{- if and $set.includeTemplates (eq $object.kind "Deployment") }}
{{- $template := $object.spec.template.metadata }}
{{- $_ := set $template "labels" (merge (dict) $set.pairs ($template.labels | default dict)) }}
{{- end }}
{{- end }}
{{- if not (hasPrefix "Cluster" $object.kind) }}
{{- $_ := set $metadata "namespace" $root.Release.Namespace }}
{{- end }}
{{- $items = append $items $object }}
{{- end }}
{{- end }}
{{- toJson (dict "items" $items) }}
{{- end }}
