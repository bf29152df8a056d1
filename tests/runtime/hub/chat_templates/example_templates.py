"""Chat templates in the manner of published models, for the comparison with transformers."""

HEADERS = """\
{{- bos_token }}
{%- if tools is not none %}
    {{- raise_exception('no tools here') }}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%Y") %}
    {%- else %}
        {%- set date_string = "once" %}
    {%- endif %}
{%- endif %}
{#- a system message, where there is one, comes first #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Today: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if 'tool_calls' in message %}
        {{- raise_exception('no tool calls here') }}
    {%- endif %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

CHATML = """\
{%- if tools %}
<|im_start|>system
# Tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{% for message in messages %}
{% if loop.first and message.role != 'system' %}
<|im_start|>system
You are a helpful assistant.<|im_end|>
{% endif %}
<|im_start|>{{ message.role }}
{% generation %}{{ message.content }}{% endgeneration %}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is false %}
<think>

</think>

{% endif %}
{% endif %}
"""

INSTRUCT = """\
{{ bos_token }}{% set ns = namespace(system='', turns=0) %}
{%- for message in messages %}
    {%- if message['role'] == 'system' %}
        {%- if not loop.first %}{{ raise_exception('Only the first message may be a system message') }}{% endif %}
        {%- set ns.system = message['content'] + '\\n\\n' %}
        {%- continue %}
    {%- endif %}
    {%- if (message['role'] == 'user') != (ns.turns % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {{- ' [INST] ' + (ns.system if ns.turns == 0 else '') + message['content'] + ' [/INST]' }}
    {%- else %}
        {{- ' ' + message['content'] + eos_token }}
    {%- endif %}
    {%- set ns.turns = ns.turns + 1 %}
{%- endfor %}
"""

ODDS_AND_ENDS = """\
{% macro shout(text, times=2) %}{{ text | upper * times }}{% endmacro %}
{% set d = dict(a=1, b=[1, 2]) %}
{{ d | tojson }} {{ d | tojson(indent=2) }} {{ {'k': "<é & 'x'>"} | tojson(ensure_ascii=True, sort_keys=True) }}
{% for i in range(5) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}

{{ shout(messages[-1].content) }} {{ messages | length }} {{ messages[0].get('name', 'anonymous') }}
{{ messages | map(attribute='role') | join(',') }}
{{ nothing }} {{ nothing is defined }} {{ image_token }}{{ unk_token }}
{{ messages[0]['content'].split(' ')[-1] }} {{ '%s!' % 'x' }} {{ 7 // 2 }} {{ documents is none }}
{% generation %}{% set inside = 1 %}{{ inside }}{% endgeneration %}{{ inside is defined }}
{% if messages[0].content is string and messages[0].content is not mapping %}text{% endif -%}
   {{ '\\n' }}   end
"""

TEMPLATES = {"headers": HEADERS, "chatml": CHATML, "instruct": INSTRUCT, "odds and ends": ODDS_AND_ENDS}
